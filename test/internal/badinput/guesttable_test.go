package badinput

import (
	"net"
	"net/netip"

	"golang.org/x/net/dns/dnsmessage"

	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/testkit"
)

var guestTable = []row{
	{costly, commands, "rules up to the most, and more, then none again and again", "refused from the most on",
		func(w *world) {
			s, r := w.sender()
			rule := make([]byte, 48)
			rule[5] = 6 // TCP
			for seq := range uint32(2 * reps) {
				rule[4] = 1 << 4 // a destination port
				le.PutUint16(rule[42:], uint16(seq+1))
				s.batch(r, s.request(control.ClassFlow, control.FlowAdd, 7, seq+1, rule))
			}
			for id := range uint32(2 * reps) {
				s.batch(r, s.request(control.ClassFlow, control.FlowDel, 7, 2*reps+id+1, le.AppendUint32(nil, id+1)))
			}
			s.flush(r)
		}, bound{memory: few.memory, peak: few.peak, cpu: 3 * few.cpu, lines: few.lines, stall: few.stall}},
	{slow, commands, "requests whose answers find no buffers", "32 answers wait", func(w *world) {
		s, r := w.sender()
		s.offer(s.start(0, 256))
		for seq := range uint32(reps) {
			s.batch(r, s.request(control.ClassInfo, control.InfoHello, 7, seq+1, nil))
		}
		s.flush(r)
	}, few},
	{repeated, commands, "requests of as many sessions, and frames that are none", "answered, or dropped", func(w *world) {
		s, r := w.sender()
		for i := range uint32(reps) {
			odd := s.request(control.Class(i), control.Command(i>>4), i, i, make([]byte, i%1400))
			odd[control.EthernetLen+int(i)%control.HeaderLen] ^= byte(i)
			s.batch(r, s.request(control.ClassInfo, control.InfoHello, i+1, 1, nil), odd, odd[:14+i%30])
		}
		s.flush(r)
	}, few},

	{costly, gateway, "fragments that overlap, and datagrams that are never whole", "dropped in time", func(w *world) {
		s, r := w.sender()
		piece := make([]byte, 1400)
		for i := range uint16(8 * reps) {
			// Four fragments, at bytes 0, 32,696, 65,400 and 32,560: the second and the last overlap, the third ends
			// beyond 64 KiB.
			s.batch(r, s.ipv4(gatewayAddr, 17, i/4, 1<<13|(i%4)*700/8+(i%4)*4000, piece))
		}
		s.flush(r)
	}, bound{memory: few.memory, peak: few.peak, cpu: 2 * few.cpu, lines: few.lines, stall: few.stall}},
	{costly, gateway, "datagrams of two thousand flows to this machine", "all flows that there may be", func(w *world) {
		host := testkit.Must(net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: int(w.port)}))(w.t)
		defer host.Close()
		s, r := w.sender()
		for i := range uint16(2 * reps) {
			s.batch(r, s.udp(gatewayAddr, 10000+i, w.port, []byte("on")))
		}
		s.flush(r)
		// At most 1,024 flows are open at a time, with two sockets each.
		testkit.Eventually(w.t, "the flows are open", func() bool { return w.s.cost().files >= w.before.files+2*1024 })
		w.settle()
	}, bound{memory: 32 * mib, peak: 48 * mib, cpu: 10 * few.cpu, lines: few.lines, files: 2*1024 + 8, stall: few.stall}},
	{disguised, gateway, "metadata services by TCP and UDP, and names of others by DHCP", "refused", func(w *world) {
		s, r := w.sender()
		metadata := netip.AddrFrom4([4]byte{169, 254, 169, 254})
		for i := range uint16(reps) {
			s.batch(r, s.udp(metadata, 10000+i, 80, nil), s.syn(metadata, 10000+i, 80), s.dhcp(3, macOf(0), i))
		}
		s.flush(r)
	}, few},
	{repeated, gateway, "all that DHCP knows, again and again", "as far as bounds allow", func(w *world) {
		s, r := w.sender()
		for i := range uint16(2 * reps) {
			s.batch(r, s.dhcp(byte(i%10), s.mac, i))
		}
		s.flush(r)
	}, few},
	{repeated, gateway, "questions, to others and of no sense", "as far as bounds allow", func(w *world) {
		s, r := w.sender()
		for i := range uint16(2 * reps) {
			q := s.question("port0.", i)
			switch i % 4 {
			case 1:
				q = s.question("unknown.invalid.", i)
			case 2:
				q = q[:len(q)/2]
			case 3:
				q[5] = 200
			}
			s.batch(r, s.udp(gatewayAddr, 10000+i, 53, q))
		}
		s.flush(r)
		w.settle()
	}, bound{memory: few.memory, peak: few.peak, cpu: 2 * few.cpu, lines: few.lines, files: 128 + 8, stall: few.stall}},
	{together, gateway, "one asks for all that others get and the other takes nothing", "shares of each", func(w *world) {
		s, r := w.sender()
		deaf := w.s.attacker(w.t, w.attacker.port+1).connect().share()
		defer deaf.hangUp()
		x := deaf.start(1, 256)
		deaf.offer(deaf.start(0, 256))
		for i := range uint16(reps) {
			deaf.batch(x, deaf.udp(gatewayAddr, i, 53, deaf.question("port0.", i)), deaf.syn(gatewayAddr, i, 1))
			s.batch(r, s.udp(gatewayAddr, i, 53, s.question("port0.", i)))
		}
		deaf.flush(x)
		s.flush(r)
	}, few},
}

// The gateway's IPv4 address. The address of the guest at port i ends with i + 1 instead (lab.Addr4).
var gatewayAddr = netip.AddrFrom4([4]byte{10, 118, 110, 254})

func addrOf(port int) [4]byte { return [4]byte{10, 118, 110, byte(port + 1)} }

// sender connects the attacker, and sends a frame, from which the switch learns its address.
func (w *world) sender() (*attacker, *ring) {
	a := w.attacker.connect().share()
	r := a.start(1, 256)
	a.send(r, [12]byte{}, w.arp(a, uint32(a.port)))
	return a, r
}

// settle counts descriptors until at least 19 counts in a row were not above the largest one before.
func (w *world) settle() {
	for n := 0; n < 20; n++ {
		before := w.files
		if w.count(); w.files > before {
			n = 0
		}
		w.in.move(w.t, 100)
	}
}

// flush puts up to batchLen frames at frameSpace, one every frameLen bytes.
const (
	frameSpace = ramSize - 1<<20
	frameLen   = 4096
	batchLen   = 128
)

// batch collects frames, and sends them when there are batchLen.
func (a *attacker) batch(r *ring, frames ...[]byte) {
	for _, f := range frames {
		a.waiting = append(a.waiting, f)
		if len(a.waiting) == batchLen {
			a.flush(r)
		}
	}
}

// flush sends the frames that batch has collected, and waits until their chains are returned.
func (a *attacker) flush(r *ring) {
	a.t.Helper()
	before := a.usedIdx(r)
	n := uint16(len(a.waiting))
	for i, f := range a.waiting {
		addr := frameSpace + uint64(i)*frameLen
		clear(a.ram[addr:][:12])
		a.put(r.desc+16*uint64(i), addr, uint32(12+copy(a.ram[addr+12:][:frameLen-12], f)), 0, 0)
	}
	a.waiting = a.waiting[:0]
	a.offer(r, heads(n)...)
	testkit.Eventually(a.t, "the frames come back", func() bool { return a.usedIdx(r)-before == n })
}

func (a *attacker) request(class control.Class, command control.Command, session, seq uint32, data []byte) []byte {
	f := control.Frame{Dst: control.MAC, Src: [6]byte(a.mac), Data: data}
	f.Kind, f.Class, f.Command, f.Session, f.Seq = control.KindRequest, class, command, session, seq
	return f.Append(nil)
}

func (a *attacker) ipv4(to netip.Addr, proto byte, id, fragment uint16, data []byte) []byte {
	b := append(append([]byte{}, macOf(253)...), a.mac...)
	b = append(b, 8, 0, 0x45, 0)
	b = be.AppendUint16(b, uint16(20+len(data)))
	b = be.AppendUint16(be.AppendUint16(b, id), fragment)
	from, dst := addrOf(a.port), to.As4()
	b = append(append(append(b, 64, proto, 0, 0), from[:]...), dst[:]...)
	be.PutUint16(b[24:], ^sum(b[14:], 0))
	return append(b, data...)
}

func (a *attacker) udp(to netip.Addr, src, dst uint16, data []byte) []byte {
	b := be.AppendUint16(be.AppendUint16(nil, src), dst)
	b = append(be.AppendUint16(b, uint16(8+len(data))), 0, 0) // no checksum
	return a.ipv4(to, 17, src, 0, append(b, data...))
}

func (a *attacker) syn(to netip.Addr, src, dst uint16) []byte {
	b := be.AppendUint16(be.AppendUint16(nil, src), dst)
	b = append(b, 0, 0, 0, 1, 0, 0, 0, 0, 5<<4, 2, 0xff, 0xff, 0, 0, 0, 0)
	f := a.ipv4(to, 6, src, 0, b)
	be.PutUint16(f[50:], ^sum(f[26:], 6+uint32(len(b)))) // with the addresses of the pseudo header
	return f
}

// sum returns the Internet checksum of n and of b, whose length is even, not complemented.
func sum(b []byte, n uint32) uint16 {
	for ; len(b) > 1; b = b[2:] {
		n += uint32(be.Uint16(b))
	}
	for n > 0xffff {
		n = n>>16 + n&0xffff
	}
	return uint16(n)
}

func (a *attacker) dhcp(kind byte, client net.HardwareAddr, n uint16) []byte {
	m := make([]byte, 236, 300)
	m[0], m[1], m[2] = 1, 1, 6
	be.PutUint16(m[4:], n)
	copy(m[28:], client)
	m = append(m, 99, 130, 83, 99, 53, 1, kind)
	m = append(m, 50, 4, 10, 118, 110, byte(n), 255)
	f := a.udp(netip.AddrFrom4([4]byte{255, 255, 255, 255}), 68, 67, m)
	copy(f, []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff})
	clear(f[24:30]) // no source address
	be.PutUint16(f[24:], ^sum(f[14:34], 0))
	return f
}

func (a *attacker) question(name string, id uint16) []byte {
	m := dnsmessage.Message{Header: dnsmessage.Header{ID: id, RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name), Type: dnsmessage.TypeA,
			Class: dnsmessage.ClassINET}}}
	return testkit.Must(m.Pack())(a.t)
}
