package virtio_test

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/iana"

	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/nic/nictest"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/wire"
	"vnic.dev/vnic/internal/wire/gateway"
	"vnic.dev/vnic/splitter"
	"vnic.dev/vnic/virtq"
)

var (
	floodGateway = wire.MAC{2, 0, 0, 0, 0, 0xfe}
	floodNet     = netip.MustParsePrefix("10.9.0.254/24")
)

type flooder struct {
	*suiteGuest
	stop atomic.Bool
	sent atomic.Int64
	wg   sync.WaitGroup
}

// begin makes each transmit queue send frame(mac, i) until end, with i increasing from the vring's index << 16 on.
func (f *flooder) begin(frame func(mac wire.MAC, i int) []byte) {
	for q := range len(f.rings) / 2 {
		base, _ := f.Alloc(floodSlot * rawRing)
		f.wg.Go(func() { f.flood(2*q+1, base, frame) })
	}
}

const floodSlot = 512

func (f *flooder) flood(ring int, base uint64, frame func(mac wire.MAC, i int) []byte) {
	var used [rawRing]virtq.Used
	free := make([]uint32, rawRing)
	for i := range free {
		free[i] = uint32(i)
	}
	for i := ring << 16; !f.stop.Load(); {
		for len(free) > 0 {
			slot := free[len(free)-1]
			b := append(make([]byte, 12), frame(f.mac, i)...)
			addr := base + floodSlot*uint64(slot)
			copy(f.At(addr), b)
			if f.rings[ring].Add([]virtq.Buf{{Addr: addr, Len: uint32(len(b))}}, nil, slot) != nil {
				break
			}
			free, i = free[:len(free)-1], i+1
		}
		f.publish(ring)
		n, err := f.rings[ring].Poll(used[:])
		if err != nil {
			f.Error(err)
			return
		}
		for _, u := range used[:n] {
			free = append(free, u.Cookie)
		}
		f.sent.Add(int64(n))
		if n == 0 {
			time.Sleep(100 * time.Microsecond) // a driver would sleep too
		}
	}
}

func (f *flooder) reset() {
	f.wg.Go(func() {
		for ; !f.stop.Load(); f.sent.Add(1) {
			f.OK(f.front.ResetDevice())
			for i := range f.rings {
				f.setup(i, 0)
			}
		}
	})
}

func (f *flooder) end() {
	f.stop.Store(true)
	f.wg.Wait()
}

func floodIP(mac, to wire.MAC, src, dst netip.Addr, proto byte, body []byte) []byte {
	be := binary.BigEndian
	b := append(append(append([]byte{}, to[:]...), mac[:]...), 8, 0, 0x45, 0)
	b = be.AppendUint16(b, uint16(20+len(body)))
	b = append(append(b, 0, 0, 0, 0, 64, proto, 0, 0), src.AsSlice()...)
	b = append(append(b, dst.AsSlice()...), body...)
	var h splitter.Headers
	_ = splitter.Parse(b, uint32(len(b)), &h)
	splitter.FixIPv4(&h, b)
	if proto == splitter.ProtoTCP {
		splitter.FixL4(&h, b[:h.HdrLen], uint32(len(b))-uint32(h.HdrLen), splitter.Sum(b[h.HdrLen:], 0))
	}
	return b
}

func floodUDP(mac, to wire.MAC, src, dst netip.AddrPort, data []byte) []byte {
	be := binary.BigEndian
	b := be.AppendUint16(be.AppendUint16(nil, src.Port()), dst.Port())
	b = append(be.AppendUint16(b, uint16(8+len(data))), 0, 0) // no checksum
	return floodIP(mac, to, src.Addr(), dst.Addr(), splitter.ProtoUDP, append(b, data...))
}

func floodARP(mac wire.MAC, from, to netip.Addr) []byte {
	b := append(append([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, mac[:]...), 8, 6, 0, 1, 8, 0, 6, 4, 0, 1)
	b = append(append(append(b, mac[:]...), from.AsSlice()...), make([]byte, 6)...)
	return append(b, to.AsSlice()...)
}

func transaction(xid uint32) (id dhcpv4.TransactionID) {
	binary.BigEndian.PutUint32(id[:], xid)
	return id
}

func discover(mac wire.MAC, xid uint32) []byte {
	m := &dhcpv4.DHCPv4{OpCode: dhcpv4.OpcodeBootRequest, HWType: iana.HWTypeEthernet, ClientHWAddr: mac[:],
		TransactionID: transaction(xid), Options: dhcpv4.OptionsFromList(dhcpv4.OptMessageType(dhcpv4.MessageTypeDiscover))}
	to := netip.AddrPortFrom(netip.AddrFrom4([4]byte{255, 255, 255, 255}), 67)
	return floodUDP(mac, nictest.Everyone, netip.AddrPortFrom(netip.IPv4Unspecified(), 68), to, m.ToBytes())
}

func floodSYN(from, to uint16) []byte {
	b := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, from), to)
	return append(b, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, splitter.SYN, 4, 0, 0, 0, 0, 0)
}

// hostEcho returns a port of 127.0.0.1, the same for UDP and TCP, at which this process echoes UDP datagrams and
// listens for TCP connections.
func hostEcho(t *testing.T) uint16 {
	l := testkit.Must(net.Listen("tcp4", "127.0.0.1:0"))(t)
	t.Cleanup(func() { l.Close() })
	u := testkit.Must(net.ListenPacket("udp4", l.Addr().String()))(t)
	t.Cleanup(func() { u.Close() })
	go func() {
		for b := make([]byte, 2048); ; {
			n, from, err := u.ReadFrom(b)
			if err != nil {
				return
			}
			_, _ = u.WriteTo(b[:n], from)
		}
	}()
	return uint16(l.Addr().(*net.TCPAddr).Port)
}

// answers returns a function that reports whether a frame is an IPv4 packet of this protocol from one port to the
// other, and no TCP reset.
func answers(proto byte, from, to uint16) func(b []byte) bool {
	return func(b []byte) bool {
		return len(b) >= 42 && b[12] == 8 && b[13] == 0 && b[23] == proto && binary.BigEndian.Uint16(b[34:]) == from &&
			binary.BigEndian.Uint16(b[36:]) == to && (proto != splitter.ProtoTCP || b[47]&splitter.RST == 0)
	}
}

type innocent struct{ *suiteGuest }

// answerARP answers the frame b if it is an ARP request for the guest's address, as a guest's network stack does.
func (v *innocent) answerARP(b []byte) {
	if len(b) < 42 || binary.BigEndian.Uint16(b[12:]) != splitter.EtherTypeARP || b[21] != 1 ||
		b[41] != v.mac[5] {
		return
	}
	reply := floodARP(v.mac, netip.AddrFrom4([4]byte(b[38:42])), netip.AddrFrom4([4]byte(b[28:32])))
	copy(reply, b[6:12])
	reply[21] = 2
	copy(reply[32:], b[22:28])
	v.Send(0, nictest.Frame{Header: reply})
}

func (v *innocent) asks(what string, frame []byte, accept func(b []byte) bool) {
	v.Helper()
	v.Send(0, nictest.Frame{Header: frame})
	for end := time.Now().Add(testkit.Patience); ; {
		u := v.next(0)
		b := v.At(v.posted[0][u.Cookie][0].Addr)[12:u.Len]
		v.answerARP(b)
		ok := accept(b)
		v.repost(0, u)
		v.publish(0)
		if ok {
			return
		}
		if time.Now().After(end) {
			v.Fatalf("%s is not answered", what)
		}
	}
}

// In TestFloods a guest makes requests to the gateway while one or two others send floods or reset their devices.
//
// Invariant: stack/gateway: During a flood by one port of the switch, another port's frames are
// neither lost nor refused.
func TestFloods(t *testing.T) {
	testkit.Slow(t)
	addr0 := floodNet.Addr()
	addr := func(mac wire.MAC) netip.Addr { return netip.AddrFrom4([4]byte{10, 9, 0, mac[5]}) }
	from := func(mac wire.MAC, i int) netip.AddrPort { return netip.AddrPortFrom(addr(mac), uint16(1024+i%50000)) }
	question := []byte("\x00\x07\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x01a\x04vnic\x00\x00\x01\x00\x01")
	syn := func(i int) []byte { return floodSYN(uint16(1024+i%50000), 9) }
	echo := hostEcho(t)
	elsewhere := netip.MustParseAddr("192.0.2.7")
	type full func(g *gateway.Gateway, f *flooder) bool
	busy := func(g *gateway.Gateway, _ *flooder) bool { return g.Link().Counters().Busy > 0 }
	// stormRate limits the broadcasts of a flooder, in a second: the innocent guest gets them too, and must read them.
	const stormRate = 100
	storm := func(_ *gateway.Gateway, f *flooder) bool { return f.Port().Link().Counters().Drops[wire.DropStorm] > 0 }
	for _, c := range []struct {
		name  string
		frame func(mac wire.MAC, i int) []byte // nil: the flooder resets its device instead
		full  full
	}{
		{"DNS", func(m wire.MAC, i int) []byte {
			return floodUDP(m, floodGateway, from(m, 0), netip.AddrPortFrom(addr0, 53), question)
		}, busy},
		{"UDP to nobody", func(m wire.MAC, i int) []byte {
			return floodUDP(m, floodGateway, from(m, 0), netip.AddrPortFrom(addr0, 9), question)
		}, busy},
		{"new flows", func(m wire.MAC, i int) []byte {
			return floodUDP(m, floodGateway, from(m, i), netip.AddrPortFrom(elsewhere, 9), question)
		}, busy},
		{"SYN", func(m wire.MAC, i int) []byte {
			return floodIP(m, floodGateway, addr(m), elsewhere, splitter.ProtoTCP, syn(i))
		}, busy},
		{"ARP", func(m wire.MAC, i int) []byte { return floodARP(m, addr(m), addr0) }, storm},
		{"DHCP", func(m wire.MAC, i int) []byte { return discover(m, uint32(i)) }, storm},
		{"commands", func(m wire.MAC, i int) []byte {
			f := control.Frame{Dst: wire.ControlMAC, Src: m}
			f.Kind, f.Class, f.Command = control.KindRequest, control.ClassInfo, control.InfoHello
			f.Session, f.Seq = 9, uint32(i)
			return f.Append(nil)
		}, func(_ *gateway.Gateway, f *flooder) bool { return f.Port().LostReplies() > 0 }},
		{"resets", nil, func(_ *gateway.Gateway, f *flooder) bool { return f.sent.Load() > 10 }},
	} {
		for _, pairs := range [][]int{{8}, {2, 2}} {
			t.Run(fmt.Sprintf("%s, queues %d", c.name, pairs), func(t *testing.T) {
				files, sw := nictest.Switch(t)
				g := testkit.Must(gateway.New(sw, gateway.Options{MAC: floodGateway, Prefix4: floodNet, NAT: true,
					Policy: gateway.Policy{HostPorts: gateway.AllPorts}}))(t)
				t.Cleanup(func() { testkit.OK(t, g.Close()) })
				v := &innocent{newRawGuest(t, files, sw, 0, rawOptions{pairs: 1, mtu: 1500, noGPU: true, claims: true})}
				v.Post(0, 128)
				v.asks("ARP, before it", floodARP(v.mac, addr(v.mac), addr0), isARPReply)
				var all []*flooder
				for i, n := range pairs {
					f := &flooder{suiteGuest: newRawGuest(t, files, sw, 1+i, rawOptions{pairs: n, mtu: 1500, noGPU: true, claims: true,
						storm: stormRate})}
					if c.frame == nil {
						f.reset()
					} else {
						f.begin(c.frame)
					}
					t.Cleanup(f.end)
					all = append(all, f)
				}
				testkit.Eventually(t, "the queues are full", func() bool { return c.full(g, all[0]) })
				for i := range 5 {
					v.asks(fmt.Sprintf("ARP request %d", i), floodARP(v.mac, addr(v.mac), addr0), isARPReply)
					v.asks(fmt.Sprintf("DISCOVER %d", i), discover(v.mac, uint32(i)),
						func(b []byte) bool { return isOffer(b, uint32(i)) })
					port := uint16(2000 + i)
					from, to := netip.AddrPortFrom(addr(v.mac), port), netip.AddrPortFrom(addr0, echo)
					v.asks(fmt.Sprintf("question %d", i), floodUDP(v.mac, floodGateway, from, netip.AddrPortFrom(addr0, 53), question),
						answers(splitter.ProtoUDP, 53, port))
					v.asks(fmt.Sprintf("flow %d", i), floodUDP(v.mac, floodGateway, from, to, question),
						answers(splitter.ProtoUDP, echo, port))
					v.asks(fmt.Sprintf("connection %d", i), floodIP(v.mac, floodGateway, addr(v.mac), addr0, splitter.ProtoTCP,
						floodSYN(port, echo)), answers(splitter.ProtoTCP, echo, port))
				}
				for _, f := range all {
					f.end()
				}
				drops := v.Port().Link().Counters().Drops
				drops[wire.DropNoBuffer] = 0 // broadcasts of the flooders may find no buffer
				testkit.Equal(t, "drops of the innocent guest", drops, [wire.NumDropReasons]uint64{})
				testkit.Eventually(t, "the gateway's port has missed nothing but what it has given up itself", func() bool {
					return g.Stats().OutGaveUp == g.Link().Counters().Drops[wire.DropNoBuffer]
				})
			})
		}
	}
}

func isARPReply(b []byte) bool {
	return len(b) >= 42 && binary.BigEndian.Uint16(b[12:]) == splitter.EtherTypeARP && b[21] == 2
}

func isOffer(b []byte, xid uint32) bool {
	if len(b) < 42 || b[12] != 8 || b[13] != 0 || b[23] != splitter.ProtoUDP || binary.BigEndian.Uint16(b[36:]) != 68 {
		return false
	}
	m, err := dhcpv4.FromBytes(b[42:])
	return err == nil && m.TransactionID == transaction(xid) && m.MessageType() == dhcpv4.MessageTypeOffer
}
