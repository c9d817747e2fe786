package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"
	"unsafe"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"vnic.dev/vnic/guest-images/agent"
	"vnic.dev/vnic/guest-images/boot"
)

// In a guest this program is process 1, with operations on eth0, whose driver is the kernel's.

// stockModules are the kernel's driver, and its VLANs.
var stockModules = []string{"virtio_net", "8021q"}

const (
	iface     = "eth0"
	vlan      = 5
	guestPort = 7000
)

// args of all operations.
type args struct {
	Addr    string `json:"addr,omitempty"`
	Bytes   uint64 `json:"bytes,omitempty"`
	Streams int    `json:"streams,omitempty"`
	MTU     int    `json:"mtu,omitempty"`
	On      bool   `json:"on,omitempty"`
	Queues  uint32 `json:"queues,omitempty"`
}

// inGuest has this program be the guest's, if it is in a guest; else it returns.
func inGuest() {
	if _, err := os.Stat(agent.ConfigPath); err != nil {
		return
	}
	for name, op := range map[string]func(*args) (any, error){
		"stock.up": up, "stock.stream": func(a *args) (any, error) { return nil, streams(a.Addr, a.Bytes, max(a.Streams, 1)) },
		"stock.mtu":      func(a *args) (any, error) { return nil, setMTU(iface, a.MTU) },
		"stock.offloads": func(a *args) (any, error) { return nil, offloads(a.On) },
		"stock.queues":   func(a *args) (any, error) { return nil, channels(a.Queues) },
		"stock.vlan":     func(a *args) (any, error) { return nil, addVLAN(a.Addr) },
	} {
		agent.Register(name, func(_ context.Context, raw json.RawMessage) (any, error) {
			var a args
			if len(raw) > 0 {
				if err := json.Unmarshal(raw, &a); err != nil {
					return nil, err
				}
			}
			out, err := op(&a)
			if out == nil {
				out = struct{}{}
			}
			return out, err
		})
	}
	os.Exit(boot.Main(os.Args))
}

// lease is what DHCP gave.
type lease struct{ Addr, Router, DNS, MTU string }

// up brings eth0 up by DHCP, and starts a server of streams.
func up(*args) (any, error) {
	link, err := netlink.LinkByName(iface)
	if err != nil {
		return nil, err
	}
	lo, err := netlink.LinkByName("lo")
	if err := errors.Join(err, netlink.LinkSetUp(lo), netlink.LinkSetUp(link)); err != nil {
		return nil, err
	}
	ack, err := dhcp(link.Attrs().HardwareAddr)
	if err != nil {
		return nil, fmt.Errorf("DHCP: %w", err)
	}
	if err := netlink.AddrReplace(link, &netlink.Addr{IPNet: &net.IPNet{IP: ack.YourIPAddr, Mask: ack.SubnetMask()}}); err != nil {
		return nil, err
	}
	if len(ack.Router()) == 0 {
		return nil, errors.New("DHCP: no router")
	}
	if err := netlink.RouteReplace(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: ack.Router()[0]}); err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", fmt.Sprint(":", guestPort))
	if err != nil {
		return nil, err
	}
	go serveStreams(l)
	return &lease{Addr: ack.YourIPAddr.String(), Router: ack.Router()[0].String(), DNS: fmt.Sprint(ack.DNS()),
		MTU: fmt.Sprint(link.Attrs().MTU)}, nil
}

// dhcp asks for an address, as a client that has none (RFC 2131).
func dhcp(mac net.HardwareAddr) (*dhcpv4.DHCPv4, error) {
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		cerr := c.Control(func(fd uintptr) {
			err = errors.Join(unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_BROADCAST, 1), unix.BindToDevice(int(fd), iface))
		})
		return errors.Join(err, cerr)
	}}
	pc, err := lc.ListenPacket(context.Background(), "udp4", ":68")
	if err != nil {
		return nil, err
	}
	defer pc.Close()
	ask := func(m *dhcpv4.DHCPv4, want dhcpv4.MessageType) (*dhcpv4.DHCPv4, error) {
		b := make([]byte, 1500)
		for range 10 {
			if _, err := pc.WriteTo(m.ToBytes(), &net.UDPAddr{IP: net.IPv4bcast, Port: 67}); err != nil {
				return nil, err
			}
			_ = pc.SetReadDeadline(time.Now().Add(time.Second))
			n, _, err := pc.ReadFrom(b)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				continue
			}
			if err != nil {
				return nil, err
			}
			if r, err := dhcpv4.FromBytes(b[:n]); err == nil && r.TransactionID == m.TransactionID && r.MessageType() == want {
				return r, nil
			}
		}
		return nil, fmt.Errorf("no %v", want)
	}
	m, err := dhcpv4.NewDiscovery(mac, dhcpv4.WithBroadcast(true))
	if err != nil {
		return nil, err
	}
	offer, err := ask(m, dhcpv4.MessageTypeOffer)
	if err != nil {
		return nil, err
	}
	if m, err = dhcpv4.NewRequestFromOffer(offer, dhcpv4.WithBroadcast(true)); err != nil {
		return nil, err
	}
	return ask(m, dhcpv4.MessageTypeAck)
}

func setMTU(name string, mtu int) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	return netlink.LinkSetMTU(link, mtu)
}

func addVLAN(addr string) error {
	link, err := netlink.LinkByName(iface)
	if err != nil {
		return err
	}
	v := &netlink.Vlan{LinkAttrs: netlink.LinkAttrs{Name: "vlan", ParentIndex: link.Attrs().Index}, VlanId: vlan,
		VlanProtocol: netlink.VLAN_PROTOCOL_8021Q}
	if err := netlink.LinkAdd(v); err != nil {
		return err
	}
	a, err := netlink.ParseAddr(addr)
	if err != nil {
		return err
	}
	return errors.Join(netlink.AddrAdd(v, a), netlink.LinkSetUp(v))
}

// ethtool does an ioctl on eth0 (SIOCETHTOOL); cmd is the first word of v.
func ethtool(v unsafe.Pointer) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	ifr := struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}{data: v}
	copy(ifr.name[:], iface)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&ifr))); errno != 0 {
		return errno
	}
	return nil
}

// offloads turns checksums, scatter-gather, TSO, GSO and GRO on or off: in that order on, in the other off. Received checksums
// cannot be turned off: virtio_net needs CTRL_GUEST_OFFLOADS for that, which QEMU does not offer with vhost-user.
func offloads(on bool) error {
	cmds := []uint32{unix.ETHTOOL_STXCSUM, unix.ETHTOOL_SSG, unix.ETHTOOL_STSO, unix.ETHTOOL_SGSO, unix.ETHTOOL_SGRO}
	for i := range cmds {
		v := struct{ cmd, data uint32 }{cmds[i], 1}
		if !on {
			v.cmd, v.data = cmds[len(cmds)-1-i], 0
		}
		if err := ethtool(unsafe.Pointer(&v)); err != nil {
			return fmt.Errorf("ethtool command %#x to %d: %w", v.cmd, v.data, err)
		}
	}
	v := struct{ cmd, data uint32 }{cmd: unix.ETHTOOL_GTSO}
	if err := ethtool(unsafe.Pointer(&v)); err != nil || v.data != 0 != on {
		return fmt.Errorf("TSO is %d: %w", v.data, err)
	}
	return nil
}

// channels is ethtool -L combined n.
func channels(n uint32) error {
	v := struct{ cmd, maxRX, maxTX, maxOther, maxCombined, rx, tx, other, combined uint32 }{cmd: unix.ETHTOOL_GCHANNELS}
	if err := ethtool(unsafe.Pointer(&v)); err != nil {
		return err
	}
	if v.combined == n {
		return fmt.Errorf("there are %d already", n)
	}
	v.cmd, v.combined = unix.ETHTOOL_SCHANNELS, n
	if err := ethtool(unsafe.Pointer(&v)); err != nil {
		return fmt.Errorf("%d of %d: %w", n, v.maxCombined, err)
	}
	v.cmd, v.combined = unix.ETHTOOL_GCHANNELS, 0
	if err := ethtool(unsafe.Pointer(&v)); err != nil || v.combined != n {
		return fmt.Errorf("%d, not %d: %w", v.combined, n, err)
	}
	return nil
}
