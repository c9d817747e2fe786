package gvelab

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	mdl "github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"vnic.dev/vnic/test/internal/guestops"
)

// Constants of the family "ethtool" (include/uapi/linux/ethtool_netlink_generated.h).
const (
	cmdFeaturesSet = 12
	cmdCoalesceSet = 20

	attrFeaturesWanted  = 3
	attrBitsetBits      = 3
	attrBitsetBit       = 1
	attrBitName         = 2
	attrBitValue        = 3
	attrRingsBufLen     = 10
	attrRingsSplit      = 11
	splitOff, splitOn   = 1, 2
	attrCoalesceRXUsecs = 2
	attrCoalesceTXUsecs = 6
)

// Constants of SIOCETHTOOL (include/uapi/linux/ethtool.h).
const (
	setMessageLevel = 0x08
	getStrings      = 0x1b
	getStats        = 0x1d
	setPrivFlags    = 0x28
	getRule         = 0x2f
	deleteRule      = 0x31
	insertRule      = 0x32
	resetAll        = 0x34
	setIndir        = 0x39
	setTunable      = 0x49

	stringLen, statsSet    = 32, 1
	rxCopybreak, tunableUp = 1, 3 // ETHTOOL_RX_COPYBREAK, ETHTOOL_TUNABLE_U32

	// struct ethtool_rxnfc, with struct ethtool_rx_flow_spec at 16
	rxnfcLen, ruleType, ruleKey, ruleMask, ruleQueue, ruleAt = 192, 16, 20, 92, 168, 176
)

var native = binary.NativeEndian

func value(command uint32, vs ...uint32) func() error {
	return func() error {
		b := native.AppendUint32(nil, command)
		for _, v := range vs {
			b = native.AppendUint32(b, v)
		}
		return guestops.Ioctl(underTestName, b)
	}
}

func numbers(command uint8, attrs map[uint16]uint32) func() error {
	return func() error { return set(command, attrs) }
}

// feature returns a function that does what ethtool -K does.
func feature(name string, on bool) func() error {
	return func() error {
		return guestops.Set(guestops.Ethtool, cmdFeaturesSet, func(ae *mdl.AttributeEncoder) {
			guestops.Interface(ae, underTestName)
			ae.Nested(attrFeaturesWanted, func(ae *mdl.AttributeEncoder) error {
				ae.Nested(attrBitsetBits, func(ae *mdl.AttributeEncoder) error {
					ae.Nested(attrBitsetBit, func(ae *mdl.AttributeEncoder) error {
						ae.String(attrBitName, name)
						ae.Flag(attrBitValue, on)
						return nil
					})
					return nil
				})
				return nil
			})
		})
	}
}

// split returns a function that does what ethtool -G tcp-data-split does.
func split(to uint8) func() error {
	return func() error {
		return guestops.Set(guestops.Ethtool, cmdRingsSet, func(ae *mdl.AttributeEncoder) {
			guestops.Interface(ae, underTestName)
			ae.Uint8(attrRingsSplit, to)
		})
	}
}

// flowTypes has the flow types of ethtool -N that the driver supports, and the offset of ports, or of an SPI, in a
// rule's key and mask.
var flowTypes = []struct {
	name     string
	kind     uint32
	selector int
}{
	{"tcp4", 0x01, 8}, {"udp4", 0x02, 8}, {"sctp4", 0x03, 8}, {"ah4", 0x09, 8}, {"esp4", 0x0a, 8},
	{"tcp6", 0x05, 32}, {"udp6", 0x06, 32}, {"sctp6", 0x07, 32}, {"ah6", 0x0b, 32}, {"esp6", 0x0c, 32},
}

// selector is a source port and a destination port, or an SPI.
var selector = []byte{0x12, 0x34, 0x56, 0x78}

func rules() error {
	for i, f := range flowTypes {
		b := make([]byte, rxnfcLen)
		native.PutUint32(b, insertRule)
		native.PutUint32(b[ruleType:], f.kind)
		copy(b[ruleKey+f.selector:], selector)
		copy(b[ruleMask+f.selector:], []byte{0xff, 0xff, 0xff, 0xff})
		native.PutUint64(b[ruleQueue:], uint64(i%4))
		native.PutUint32(b[ruleAt:], uint32(i))
		if err := guestops.Ioctl(underTestName, b); err != nil {
			return fmt.Errorf("rule for %s: %w", f.name, err)
		}
	}
	for i, f := range flowTypes {
		b := make([]byte, rxnfcLen)
		native.PutUint32(b, getRule)
		native.PutUint32(b[ruleAt:], uint32(i))
		if err := guestops.Ioctl(underTestName, b); err != nil {
			return fmt.Errorf("ask for the rule for %s: %w", f.name, err)
		}
		key, mask := b[ruleKey+f.selector:][:4], b[ruleMask+f.selector:][:4]
		if native.Uint32(b[ruleType:]) != f.kind || native.Uint64(b[ruleQueue:]) != uint64(i%4) ||
			!bytes.Equal(key, selector) || !bytes.Equal(mask, []byte{0xff, 0xff, 0xff, 0xff}) {
			return fmt.Errorf("the rule for %s came back with type %#x, queue %d, key %x, mask %x", f.name,
				native.Uint32(b[ruleType:]), native.Uint64(b[ruleQueue:]), key, mask)
		}
	}
	for i, f := range flowTypes {
		b := make([]byte, rxnfcLen)
		native.PutUint32(b, deleteRule)
		native.PutUint32(b[ruleAt:], uint32(i))
		if err := guestops.Ioctl(underTestName, b); err != nil {
			return fmt.Errorf("delete the rule for %s: %w", f.name, err)
		}
	}
	return nil
}

// table returns a function that does what ethtool -X weight does.
func table(queues ...uint32) func() error {
	const entries = 128
	t := []uint32{entries}
	for i := range entries {
		t = append(t, queues[i%len(queues)])
	}
	return value(setIndir, t...)
}

func stamping(filter int32) func() error {
	return func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(fd) }()
		return unix.IoctlSetHwTstamp(fd, underTestName, &unix.HwTstampConfig{Rx_filter: filter})
	}
}

const stampPort = 7003

// stamps sends three datagrams from the peer. Each must have a time from the NIC, later than the previous one's.
func (g *guest) stamps() error {
	c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: underTest.Addr().AsSlice(), Port: stampPort})
	if err != nil {
		return err
	}
	defer c.Close()
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var e error
	err = raw.Control(func(fd uintptr) {
		e = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_TIMESTAMPING,
			unix.SOF_TIMESTAMPING_RX_HARDWARE|unix.SOF_TIMESTAMPING_RAW_HARDWARE)
	})
	if err = errors.Join(err, e, c.SetReadDeadline(time.Now().Add(patience))); err != nil {
		return err
	}
	var last time.Duration
	for i := range 3 {
		err := g.peer.do(func() error {
			far, err := net.Dial("udp4", c.LocalAddr().String())
			if err != nil {
				return err
			}
			_, err = far.Write([]byte{byte(i)})
			return errors.Join(err, far.Close())
		})
		if err != nil {
			return err
		}
		b, oob := make([]byte, 16), make([]byte, 256)
		_, n, _, _, err := c.ReadMsgUDP(b, oob)
		if err != nil {
			return fmt.Errorf("datagram %d: %w", i, err)
		}
		stamped, err := stamp(oob[:n])
		if err != nil || stamped <= last {
			return fmt.Errorf("datagram %d came at %v, the one before at %v: %w", i, stamped, last, err)
		}
		last = stamped
	}
	return nil
}

// stamp returns the hardware's time, the last of three (Documentation/networking/timestamping.rst, 2.1).
func stamp(oob []byte) (time.Duration, error) {
	ms, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return 0, err
	}
	for _, m := range ms {
		if m.Header.Level == unix.SOL_SOCKET && m.Header.Type == unix.SO_TIMESTAMPING && len(m.Data) >= 48 {
			s := time.Duration(native.Uint64(m.Data[32:])) * time.Second
			return s + time.Duration(native.Uint64(m.Data[40:])), nil
		}
	}
	return 0, errors.New("there is no timestamp")
}

// setters changes the settings in steps under traffic, and sets them back.
func (g *guest) setters(ctx context.Context, _ *Args) (any, error) {
	if err := g.dut.close(); err != nil { // the device's flow rule and RSS table are for 4 queues
		return nil, err
	}
	g.dut = nil
	mtu := func(n int) func() error {
		return func() error {
			return guestops.Link(underTestName, "MTU", func(l netlink.Link) error { return netlink.LinkSetMTU(l, n) })
		}
	}
	channels := func(rx, tx uint32) func() error {
		return numbers(cmdChannelsSet, map[uint16]uint32{attrChannelsRX: rx, attrChannelsTX: tx})
	}
	rings := func(rx, tx uint32) func() error {
		return numbers(cmdRingsSet, map[uint16]uint32{attrRingsRX: rx, attrRingsTX: tx})
	}
	buffers := func(n uint32) func() error {
		return numbers(cmdRingsSet, map[uint16]uint32{attrRingsBufLen: n})
	}
	coalesce := func(rx, tx uint32) func() error {
		return numbers(cmdCoalesceSet, map[uint16]uint32{attrCoalesceRXUsecs: rx, attrCoalesceTXUsecs: tx})
	}
	type step struct {
		name string
		do   func() error
	}
	steps := []step{
		{"-L rx 1 tx 4", channels(1, 4)}, {"-L rx 4 tx 1", channels(4, 1)}, {"-L rx 2 tx 2", channels(2, 2)},
		{"-L rx 4 tx 4", channels(4, 4)},
		{"-G rx 64 tx 256", rings(64, 256)}, {"-G rx 4096 tx 4096", rings(4096, 4096)},
		{"-G rx 1024 tx 512", rings(1024, 512)},
		{"-G rx-buf-len 2048", buffers(2048)}, {"-G tcp-data-split on", split(splitOn)},
		{"-G rx-buf-len 4096", buffers(4096)}, {"-G tcp-data-split off", split(splitOff)},
		{"-C rx-usecs 0 tx-usecs 0", coalesce(0, 0)}, {"-C rx-usecs 1000 tx-usecs 8190", coalesce(1000, 8190)},
		{"-C rx-usecs 8190 tx-usecs 2", coalesce(8190, 2)}, {"-C rx-usecs 20 tx-usecs 50", coalesce(20, 50)},
		{"-X weight 0 1 0 0", table(1)}, {"-X weight 1 0 0 3", table(0, 3, 3, 3)}, {"-X default", table(0, 1, 2, 3)},
		{"-K ntuple on", feature("rx-ntuple-filter", true)}, {"-N of each type", rules},
		{"-K ntuple off", feature("rx-ntuple-filter", false)},
		{"-s msglvl 0xffff", value(setMessageLevel, 0xffff)}, {"-s msglvl 0", value(setMessageLevel, 0)},
		{"--set-priv-flags report-stats on", value(setPrivFlags, 1)},
		{"--set-priv-flags report-stats off", value(setPrivFlags, 0)},
		{"--set-tunable rx-copybreak 0", value(setTunable, rxCopybreak, tunableUp, 4, 0)},
		{"--set-tunable rx-copybreak 256", value(setTunable, rxCopybreak, tunableUp, 4, 256)},
		{"timestamps of all", stamping(unix.HWTSTAMP_FILTER_ALL)}, {"timestamps that come", g.stamps},
		{"timestamps of none", stamping(unix.HWTSTAMP_FILTER_NONE)},
		{"mtu 1280", mtu(1280)}, {"mtu 1500", mtu(1500)},
		{"down and up", func() error { return flap(underTestName) }},
	}
	for _, name := range []string{"rx-gro-hw", "tx-tcp-segmentation", "tx-tcp6-segmentation", "tx-checksum-ip-generic",
		"tx-scatter-gather", "rx-checksum", "rx-hashing", "rx-gro"} {
		steps = append(steps, step{"-K " + name + " off", feature(name, false)})
	}
	for _, name := range []string{"tx-scatter-gather", "tx-checksum-ip-generic", "tx-tcp-segmentation",
		"tx-tcp6-segmentation", "rx-checksum", "rx-hashing", "rx-gro", "rx-gro-hw"} {
		steps = append(steps, step{"-K " + name + " on", feature(name, true)})
	}
	for _, s := range steps {
		if err := s.do(); err != nil {
			return nil, fmt.Errorf("%s: %w", s.name, err)
		}
		if _, err := g.traffic(ctx, &Args{}); err != nil {
			return nil, fmt.Errorf("after %s: %w", s.name, err)
		}
		say(ctx, "%s", s.name)
	}
	var err error
	g.dut, err = openDevice(ctx, g)
	return nil, err
}

func (g *guest) reset(ctx context.Context, _ *Args) (any, error) {
	if err := g.dut.close(); err != nil {
		return nil, err
	}
	g.dut = nil
	if err := value(resetAll, 0xffffffff)(); err != nil {
		return nil, err
	}
	return g.traffic(ctx, &Args{})
}

func (g *guest) stats(context.Context, *Args) (any, error) {
	const room = 4096 // names, and values: the driver has some 200
	names := make([]byte, 12+room*stringLen)
	native.PutUint32(names, getStrings)
	native.PutUint32(names[4:], statsSet)
	if err := guestops.Ioctl(underTestName, names); err != nil {
		return nil, err
	}
	n := native.Uint32(names[8:])
	values := make([]byte, 8+room*8)
	native.PutUint32(values, getStats)
	native.PutUint32(values[4:], n)
	if err := guestops.Ioctl(underTestName, values); err != nil {
		return nil, err
	}
	if native.Uint32(values[4:]) != n || n > room {
		return nil, fmt.Errorf("%d names, %d values", n, native.Uint32(values[4:]))
	}
	out := make(map[string]uint64, n)
	for i := range int(n) {
		name := string(names[12+i*stringLen:][:stringLen])
		name, _, _ = strings.Cut(name, "\x00")
		out[name] = native.Uint64(values[8+8*i:])
	}
	return out, nil
}
