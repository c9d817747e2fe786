package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"vnic.dev/vnic/internal/nic"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/wire"
	"vnic.dev/vnic/splitter"
)

func TestFilter(t *testing.T) {
	f := filter{prefix4: prefix4, prefix6: prefix6, local6: netip.MustParseAddr("fe80::fe"), nat: true}
	shut := f
	shut.nat = false
	for _, c := range []struct {
		src, dst string
		class    splitter.Class
		proto    uint8
		port     uint16
		open     bool // the filter admits it with NAT
		shut     bool // the filter admits it without NAT
	}{
		{"10.118.110.1", "10.118.110.254", splitter.TCP, 6, 80, true, true},
		{"10.118.110.1", "8.8.8.8", splitter.TCP, 6, 80, true, false},
		{"10.118.110.1", "8.8.8.8", splitter.Fragment, 17, 0, true, false},
		{"10.118.110.1", "8.8.8.8", splitter.OtherIP, 1, 0, true, false},
		{"10.118.110.1", "8.8.8.8", splitter.Fragment, 1, 0, true, false},
		{"10.118.110.1", "8.8.8.8", splitter.OtherIP, 47, 0, false, false},
		{"10.118.110.1", "8.8.8.8", splitter.Malformed, 6, 0, false, false},
		{"10.118.110.1", "10.118.110.2", splitter.TCP, 6, 80, false, false},
		{"10.118.110.1", "10.118.110.255", splitter.UDP, 17, 80, false, false},
		{"10.118.110.1", "127.0.0.1", splitter.TCP, 6, 80, false, false},
		{"10.118.110.1", "0.0.0.0", splitter.TCP, 6, 80, false, false},
		{"10.118.110.1", "0.1.2.3", splitter.TCP, 6, 80, false, false},
		{"10.118.110.1", "169.254.169.254", splitter.TCP, 6, 80, true, false}, // Policy refuses it later
		{"10.118.110.1", "224.0.0.251", splitter.UDP, 17, 5353, false, false},
		{"10.118.110.1", "255.255.255.255", splitter.UDP, 17, 80, false, false},
		{"0.0.0.0", "255.255.255.255", splitter.UDP, 17, 67, true, true},
		{"10.118.110.1", "255.255.255.255", splitter.UDP, 17, 67, true, true},
		{"0.0.0.0", "10.118.110.254", splitter.TCP, 6, 80, false, false},
		{"0.0.0.0", "8.8.8.8", splitter.UDP, 17, 67, false, false},
		{"10.118.110.254", "10.118.110.254", splitter.TCP, 6, 80, false, false},
		{"10.118.110.255", "10.118.110.254", splitter.TCP, 6, 80, false, false},
		{"10.118.110.0", "10.118.110.254", splitter.TCP, 6, 80, false, false},
		{"192.168.0.1", "10.118.110.254", splitter.TCP, 6, 80, false, false},
		{"fd76:6e69::1", "fd76:6e69::fe", splitter.TCP, 6, 80, true, true},
		{"fe80::1", "fe80::fe", splitter.TCP, 6, 80, true, true},
		{"fd76:6e69::1", "2001:db8::1", splitter.TCP, 6, 80, true, false},
		{"fd76:6e69::1", "2001:db8::1", splitter.OtherIP, 58, 0, true, false},
		{"fe80::1", "2001:db8::1", splitter.TCP, 6, 80, false, false},
		{"fd76:6e69::1", "fd76:6e69::2", splitter.TCP, 6, 80, false, false},
		{"fd76:6e69::1", "fe80::2", splitter.TCP, 6, 80, true, false}, // Policy refuses it later
		{"fd76:6e69::1", "::1", splitter.TCP, 6, 80, false, false},
		{"fd76:6e69::1", "::", splitter.TCP, 6, 80, false, false},
		{"fd76:6e69::1", "::ffff:127.0.0.1", splitter.TCP, 6, 80, false, false},
		{"fd76:6e69::1", "::ffff:8.8.8.8", splitter.TCP, 6, 80, false, false},
		{"fd76:6e69::1", "ff02::1", splitter.UDP, 17, 80, false, false},
		{"fd76:6e69::fe", "fd76:6e69::fe", splitter.TCP, 6, 80, false, false},
		{"2001:db8::1", "fd76:6e69::fe", splitter.TCP, 6, 80, false, false},
	} {
		src, dst := netip.MustParseAddr(c.src), netip.MustParseAddr(c.dst)
		h := splitter.Headers{Class: c.class, Proto: c.proto, IPv6: src.Is6(), L3Off: 14, L4Off: 54,
			Flow: splitter.Flow{DstPort: c.port, IPv6: src.Is6()}}
		copy(h.Flow.Src[:], src.AsSlice())
		copy(h.Flow.Dst[:], dst.AsSlice())
		b := make([]byte, 100)
		b[54] = 128 // of ICMPv6: an echo request
		for _, f := range []filter{f, shut} {
			var got bool
			switch {
			case c.class == splitter.Malformed:
				got = f.admits(&h, b)
			case src.Is6():
				got = f.ipv6(&h, b)
			default:
				got = f.ipv4(&h)
			}
			if want := f.nat && c.open || !f.nat && c.shut; got != want {
				t.Errorf("%s to %s, %v %d, port %d, NAT %v: %v", c.src, c.dst, c.class, c.proto, c.port, f.nat, got)
			}
		}
	}
}

func TestFullInboxIsBusy(t *testing.T) {
	q := newInbox()
	p := &port{mac: gatewayMAC, filter: filter{prefix4: prefix4}, count: new(counters), in: q}
	sw := newSwitch(t)
	_, err := sw.Attach(p, wire.LinkOptions{})
	testkit.OK(t, err)
	r := newRaw(t, sw, 1)
	frame := r.udp4(gatewayMAC, netip.AddrPortFrom(addr4Of(1), 1), own4(2), make([]byte, 1000))
	one := func() wire.Verdict {
		pkts := []*wire.Packet{describe(t, r, frame)}
		p.Deliver(r.w, pkts)
		return pkts[0].Verdict
	}
	in := q.lane(0)
	taken := wire.Verdict{Kind: wire.Taken, Queue: in}
	for range inboxFrames {
		testkit.Equal(t, "verdict", one(), taken)
	}
	testkit.Equal(t, "verdict of one more", one(), wire.Verdict{Kind: wire.Busy, Queue: in})
	w, gone := make(waker, 1), make(waker, 1)
	if !in.Arm(w) || !in.Arm(gone) {
		t.Fatal("there are buffers")
	}
	in.Disarm(gone)
	got := 0
	for batch := q.take(nil); len(batch) > 0; batch = q.take(nil) {
		got += len(batch)
	}
	testkit.Equal(t, "frames", got, inboxFrames)
	<-w
	testkit.Equal(t, "wakes of a waker that has disarmed", len(gone), 0)
	if in.Arm(w) {
		t.Error("there are buffers, and it waits")
	}
	testkit.Equal(t, "verdict when there is room", one(), taken)
	q.close()
	testkit.Equal(t, "verdict when it is closed", one(), wire.Drop(wire.DropStopped))
}

// When so few short frames are left in a lane that its senders need not wait any more, it has room for the longest
// frame.
func TestLongFramesFindRoomBehindShortOnes(t *testing.T) {
	const short, long = 64, 65535
	for _, ports := range []int{1, 2, 32, 64, wire.MaxPorts} {
		q := newInbox()
		for i := range ports {
			if full, _ := q.lane(uint32(i)).reserve(short); full {
				t.Fatal("no room for a first frame")
			}
		}
		in := q.lane(0)
		for !in.AwaitBuffers() { // until senders must wait
			if full, _ := in.reserve(short); full {
				t.Fatal("no room, and nobody waits")
			}
		}
		in.unreserve(short)
		full, _ := in.reserve(long)
		testkit.Equal(t, fmt.Sprintf("no room beside %d ports", ports), full, false)
	}
}

func TestBadChecksumsAreDropped(t *testing.T) {
	p := &port{mac: gatewayMAC, filter: filter{prefix4: prefix4}, count: new(counters), in: newInbox()}
	r := newRaw(t, newSwitch(t), 1)
	body := noise(999, 1)
	frame := r.udp4(gatewayMAC, netip.AddrPortFrom(addr4Of(1), 1), own4(2), body)
	var h splitter.Headers
	testkit.OK(t, splitter.Parse(frame, uint32(len(frame)), &h))
	splitter.FixL4(&h, frame[:h.HdrLen], uint32(len(body)), splitter.Sum(body, 0))
	for _, c := range []struct {
		name   string
		change func(b []byte)
		want   wire.VerdictKind
	}{
		{"good", func([]byte) {}, wire.Taken},
		{"payload", func(b []byte) { b[500] ^= 1 }, wire.Dropped},
		{"header", func(b []byte) { b[40] ^= 1 }, wire.Dropped},
		{"IPv4 header", func(b []byte) { b[24] ^= 1 }, wire.Dropped},
	} {
		b := append([]byte(nil), frame...)
		c.change(b)
		pkt := describe(t, r, b)
		p.Deliver(r.w, []*wire.Packet{pkt})
		testkit.Equal(t, c.name, pkt.Verdict.Kind, c.want)
	}
}

// Invariant: nic: A guest that takes no frames stalls no other guest.
func TestDeadGuestStallsNobody(t *testing.T) {
	w := newRig(t, nil)
	link := testkit.Must(w.sw.Attach(&busyPort{}, wire.LinkOptions{}))(t)
	r := w.raw(1)
	r.link, r.mac = link, macOf(2) // r sends for busyPort, as guest 2
	r.send(r.arp(1, addr4Of(2), prefix4.Addr(), wire.MAC{}))
	to := udpEcho(t)
	v := w.guest(1)
	conn := v.mustDial(own4(echoServer(t, "tcp4").Port()))
	defer conn.Close()
	for i := range uint16(5) {
		r.send(r.udp4(gatewayMAC, netip.AddrPortFrom(addr4Of(2), 1000+i), own4(to.Port()), []byte("x")))
	}
	testkit.OK(t, exchange(conn, noise(1<<20, 1)))
	testkit.Eventually(t, "it gives up", func() bool { return w.g.Stats().OutGaveUp > 0 })
}

// Invariant: gateway: A guest that takes few frames delays frames to others only briefly.
func TestSlowGuestsStarveNobody(t *testing.T) {
	testkit.Slow(t)
	for _, slow := range []int{1, 5} { // five guests want more places in flight than there are
		t.Run(fmt.Sprint(slow), func(t *testing.T) {
			w := newRig(t, nil)
			to, server := udpEcho(t), own4(echoServer(t, "tcp4").Port())
			v := w.guest(1)
			ctx, cancel := context.WithCancel(t.Context())
			var floods sync.WaitGroup
			defer floods.Wait()
			defer cancel()
			for n := range slow {
				r, p := w.raw(byte(n+2)), newSlowPort()
				r.link = testkit.Must(w.sw.Attach(p, wire.LinkOptions{}))(t)
				floods.Go(func() { p.flood(ctx, r, to.Port()) })
			}
			testkit.Eventually(t, "frames to slow guests wait, or are given up", func() bool {
				o := w.g.out
				o.mu.Lock()
				defer o.mu.Unlock()
				return o.queue.bytes > 200_000 || w.g.Stats().OutGaveUp > 100
			})
			for i := range 16 {
				var conn *gonet.TCPConn
				testkit.Eventually(t, "a connection", func() (ok bool) {
					// On a busy machine ARP may find no answer in time; then the test dials again.
					var err error
					if conn, err = v.dial(server); err != nil && !strings.Contains(err.Error(), "no route to host") {
						t.Fatal(err)
					}
					return err == nil
				})
				testkit.OK(t, exchange(conn, noise(64<<10, uint64(i))))
				testkit.OK(t, conn.Close())
			}
		})
	}
}

func (p *slowPort) flood(ctx context.Context, r *raw, echo uint16) {
	from := netip.AddrPortFrom(addr4Of(r.mac[5]), 1000)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for i := uint64(0); ctx.Err() == nil; i++ {
		p.take()
		r.send(r.arp(1, from.Addr(), prefix4.Addr(), wire.MAC{}))
		for flow := range uint16(20) {
			from := netip.AddrPortFrom(from.Addr(), 1000+flow)
			r.send(r.udp4(gatewayMAC, from, own4(echo), noise(1000, i)))
			r.send(r.udp4(gatewayMAC, from, own4(9), nil)) // some are answered by an ICMP error, unless port 9 is open
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

type slowPort struct {
	nic.RxBase
	room int
}

func newSlowPort() *slowPort {
	p := new(slowPort)
	p.Init(p)
	return p
}

func (p *slowPort) take() {
	p.Lock()
	defer p.Unlock()
	p.room++
	p.WakeAll()
}

func (p *slowPort) Name() string        { return "slow" }
func (p *slowPort) Limits() wire.Limits { return wire.Limits{} }
func (p *slowPort) AwaitBuffers() bool  { return p.room == 0 }
func (p *slowPort) Buffers() int        { return p.room }
func (p *slowPort) Stopped(error)       {}

func (p *slowPort) Deliver(_ *wire.Worker, batch []*wire.Packet) {
	p.Lock()
	defer p.Unlock()
	for _, pkt := range batch {
		pkt.Verdict = wire.Verdict{Kind: wire.Busy, Queue: p}
		if p.room > 0 {
			p.room--
			pkt.Verdict.Kind = wire.Taken
		}
	}
}

type busyPort struct{}

func (*busyPort) Name() string        { return "dead" }
func (*busyPort) Limits() wire.Limits { return wire.Limits{} }
func (*busyPort) Arm(wire.Waker) bool { return true }
func (*busyPort) Disarm(wire.Waker)   {}
func (p *busyPort) Deliver(_ *wire.Worker, batch []*wire.Packet) {
	for _, pkt := range batch {
		pkt.Verdict = wire.Verdict{Kind: wire.Busy, Queue: p}
	}
}

func describe(t testing.TB, r *raw, frame []byte) *wire.Packet {
	t.Helper()
	if !r.describe(frame) {
		t.Fatalf("%x", frame)
	}
	return &r.pkt
}

func TestBadOptions(t *testing.T) {
	sw := newSwitch(t)
	forward := func(proto, to string) func(*Options) {
		return func(o *Options) { o.Forwards = []Forward{{proto, own4(1), netip.MustParseAddrPort(to)}} }
	}
	for name, change := range map[string]func(*Options){
		"no MAC":             func(o *Options) { o.MAC = wire.MAC{} },
		"group MAC":          func(o *Options) { o.MAC[0] = 1 },
		"no address":         func(o *Options) { o.Prefix4, o.Prefix6 = netip.Prefix{}, netip.Prefix{} },
		"network address":    func(o *Options) { o.Prefix4 = netip.MustParsePrefix("10.118.110.0/24") },
		"broadcast address":  func(o *Options) { o.Prefix4 = netip.MustParsePrefix("10.118.110.255/24") },
		"IPv6 for IPv4":      func(o *Options) { o.Prefix4 = prefix6 },
		"IPv4 for IPv6":      func(o *Options) { o.Prefix6 = prefix4 },
		"small MTU":          func(o *Options) { o.MTU = 1279 },
		"large MTU":          func(o *Options) { o.MTU = 65536 },
		"host name":          func(o *Options) { o.Hosts[0].Name = "a.b" },
		"name twice":         func(o *Options) { o.Hosts[0].Name = "B" },
		"gateway's name":     func(o *Options) { o.Hosts[0].Name = GatewayName },
		"MAC twice":          func(o *Options) { o.Hosts[0].MAC = macOf(2) },
		"address twice":      func(o *Options) { o.Hosts[0].Addr4 = addr4Of(2) },
		"address of no net":  func(o *Options) { o.Hosts[0].Addr4 = netip.MustParseAddr("10.0.0.1") },
		"protocol":           forward("sctp", "10.118.110.1:1"),
		"forward to gateway": forward("tcp", "10.118.110.254:2"),
		"forward to nowhere": forward("tcp", "8.8.8.8:1"),
	} {
		o := options()
		change(&o)
		if g, err := New(sw, o); !errors.Is(err, ErrBadOptions) {
			t.Errorf("%s: %v, %v", name, g, err)
		}
	}
	o := options()
	o.Forwards = []Forward{{"tcp", netip.MustParseAddrPort("192.0.2.1:1"), netip.AddrPortFrom(addr4Of(1), 1)}}
	if _, err := New(sw, o); err == nil || errors.Is(err, ErrBadOptions) || len(sw.Links()) != 0 {
		t.Errorf("%v, %d links", err, len(sw.Links()))
	}
}
