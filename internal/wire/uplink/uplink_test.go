package uplink

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/ownports"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/wire"
	"vnic.dev/vnic/splitter"
)

// carriers returns configurations of the two ends of a tunnel or stream, by kind, for the kinds that need no kernel
// device. The first end of a stream listens.
func carriers(t *testing.T) map[string][2]Config {
	x, y := tunnel(42)
	path, a := t.TempDir()+"/up", ""
	p, _ := loopback()
	a = p.String()
	return map[string][2]Config{
		"vxlan": {x, y},
		"unix":  {{Stream: &Stream{Listen: path}}, {Stream: &Stream{Connect: path}}},
		"tcp":   {{Stream: &Stream{Listen: a}}, {Stream: &Stream{Connect: a}}},
	}
}

func TestPortIsThisPrograms(t *testing.T) {
	for name, c := range carriers(t) {
		if name == "unix" {
			continue
		}
		var addr netip.AddrPort
		if v := c[0].VXLAN; v != nil {
			addr = v.Local
		} else {
			addr = netip.MustParseAddrPort(c[0].Stream.Listen)
		}
		port := addr.Port()
		testkit.Equal(t, name+": before", ownports.Has(port), false)
		s := newSide(t, 1, c[0], 1500)
		testkit.Equal(t, name+": open", ownports.Has(port), true)
		testkit.OK(t, s.up.Close())
		testkit.Equal(t, name+": closed", ownports.Has(port), false)
	}
}

// Invariant: uplink: Sent frames fit the MTU and have complete checksums.
func TestFramesGoBothWays(t *testing.T) {
	testkit.LeavesNothing(t)
	for name, c := range carriers(t) {
		t.Run(name, func(t *testing.T) {
			a, b := newSide(t, 1, c[0], 1500), newSide(t, 2, c[1], 1500)
			hello := plain(a.mac, broadcast, "hello")
			if c[0].Stream != nil { // a listening stream drops frames until a peer connects
				testkit.Eventually(t, "the peer is there", func() bool { return a.up.c.(*stream).now() != nil })
			}
			a.mustSend(hello)
			b.gets(hello)
			for range 3 {
				there, back := plain(a.mac, b.mac, "there"), plain(b.mac, a.mac, "and back")
				b.mustSend(back)
				a.gets(back)
				a.mustSend(there)
				b.gets(there)
			}
			long := plain(a.mac, b.mac, string(make([]byte, 1500)))
			a.mustSend(long)
			b.gets(long)
			tagged := append(bytes.Clone(long[:12]), append([]byte{0x81, 0, 0, 5}, long[12:]...)...)
			a.mustSend(tagged)
			b.gets(tagged)
			if v := a.send(packet(t, append(long, 0))); v != wire.Drop(wire.DropTooBig) {
				t.Errorf("one byte more: %+v", v)
			}
			small := tcp(a.mac, b.mac, 100)
			if v := a.send(partial(packet(t, small), 0)); v.Kind != wire.Taken {
				t.Fatalf("%+v", v)
			}
			segment(t, b.next(), small[54:])
			const mss = 1460
			super := tcp(a.mac, b.mac, 44*mss+10)
			for range 3 {
				if v := a.send(partial(packet(t, super), mss)); v.Kind != wire.Taken {
					t.Fatalf("%+v", v)
				}
				for rest := super[54:]; len(rest) > 0; rest = rest[min(mss, len(rest)):] {
					segment(t, b.next(), rest[:min(mss, len(rest))])
				}
			}
			if s := a.up.link.Counters(); s.Received != 1+3+1+1+1+3*45 {
				t.Errorf("%+v", s)
			}
			if len(a.up.Stats()) != 0 || len(b.up.Stats()) != 0 {
				t.Errorf("dropped: %v, %v", a.up.Stats(), b.up.Stats())
			}
		})
	}
}

func segment(t *testing.T, b, payload []byte) {
	t.Helper()
	var h splitter.Headers
	testkit.OK(t, splitter.Parse(b, uint32(len(b)), &h))
	n := int(h.HdrLen)
	sum := dma.Fold(dma.Checksum(b[n:], 0))
	if !splitter.VerifyIPv4(&h, b) || splitter.VerifyL4(&h, b[:n], uint32(len(b)-n), sum) != splitter.CsumGood {
		t.Errorf("a bad checksum in %x", b)
	}
	if !bytes.Equal(b[n:], payload) {
		t.Fatalf("%d bytes of payload, or others than %d", len(b)-n, len(payload))
	}
}

// Invariant: uplink: TCP and UDP checksums of received frames are verified, unless a tap's kernel
// has verified them or left them partial.
func TestChecksumsAreVerified(t *testing.T) {
	testkit.LeavesNothing(t)
	x, _ := tunnel(42)
	a := newSide(t, 1, x, 1500)
	peer := peerOf(t, x)
	good := tcp(macOf(9), a.mac, 1001)
	var h splitter.Headers
	testkit.OK(t, splitter.Parse(good, uint32(len(good)), &h))
	payload := good[h.HdrLen:]
	splitter.FixL4(&h, good[:h.HdrLen], uint32(len(payload)), dma.Fold(dma.Checksum(payload, 0)))
	bad := bytes.Clone(good)
	bad[len(bad)-1]++
	other := plain(macOf(9), a.mac, "no IP")
	for _, c := range []struct {
		frame []byte
		want  splitter.Csum
	}{{good, splitter.CsumGood}, {bad, splitter.CsumNone}, {other, splitter.CsumNone}, {good, splitter.CsumGood}} {
		testkit.Must(peer.Write(datagram(42, c.frame)))(t)
		a.gets(c.frame)
		testkit.Equal(t, "checksum", splitter.Csum(a.csum.Load()), c.want)
	}
}

// Invariant: uplink: Hostile datagrams are dropped and counted.
func TestHostileDatagrams(t *testing.T) {
	testkit.LeavesNothing(t)
	x, _ := tunnel(42)
	a := newSide(t, 1, x, 1500)
	peer := peerOf(t, x)
	other := x.VXLAN.Remote.Addr().As4()
	other[3] ^= 3
	stray := testkit.Must(net.DialUDP("udp4", &net.UDPAddr{IP: other[:]}, net.UDPAddrFromAddrPort(x.VXLAN.Local)))(t)
	defer stray.Close()
	far := macOf(9)
	good := plain(far, a.mac, "good")
	for _, c := range []struct {
		name string
		conn *net.UDPConn
		b    []byte
		link wire.DropReason
	}{
		{"stranger", stray, datagram(42, good), wire.DropBadFrame},
		{"bad-header", peer, nil, wire.DropBadFrame},
		{"bad-header", peer, datagram(42, good)[:7], wire.DropBadFrame},
		{"bad-header", peer, append([]byte{0}, datagram(42, good)[1:]...), wire.DropBadFrame},
		{"other-vni", peer, datagram(43, good), wire.DropBadFrame},
		{"bad-frame", peer, datagram(42, nil), wire.DropBadFrame},
		{"bad-frame", peer, datagram(42, good[:13]), wire.DropBadFrame},
		{"too-long", peer, datagram(42, append(good, make([]byte, 1600)...)), wire.DropTooBig},
	} {
		before, link := a.up.Stats()[c.name], a.up.link.Counters().Drops[c.link]
		testkit.Must(c.conn.Write(c.b))(t)
		testkit.Eventually(t, c.name+" is counted", func() bool {
			return a.up.Stats()[c.name] == before+1 && a.up.link.Counters().Drops[c.link] == link+1
		})
		if a.log.having("WARN", "why="+c.name) == 0 {
			t.Errorf("%s: no line", c.name)
		}
	}
	for name, c := range map[string]struct {
		b    []byte
		want wire.DropReason
	}{
		"a group's source":    {plain(wire.MAC{3}, a.mac, "x"), wire.DropBadSource},
		"a control frame":     {append(plain(far, a.mac, "x")[:12], 0x88, 0xb5, 1), wire.DropControlMAC},
		"from the control":    {plain(wire.ControlMAC, a.mac, "x"), wire.DropControlMAC},
		"for nobody but them": {plain(far, far, "x"), wire.DropSamePort},
	} {
		testkit.Must(peer.Write(datagram(42, plain(far, broadcast, "learn"))))(t)
		a.gets(plain(far, broadcast, "learn"))
		before := a.up.link.Counters().Drops[c.want]
		testkit.Must(peer.Write(datagram(42, c.b)))(t)
		testkit.Eventually(t, name, func() bool { return a.up.link.Counters().Drops[c.want] == before+1 })
	}
	for range 1000 {
		testkit.Must(peer.Write([]byte("noise")))(t)
		testkit.Must(peer.Write(datagram(42, good)))(t)
		a.gets(good)
	}
	testkit.OK(t, a.up.err())
}

// Invariant: uplink: 8 received frames in 10 seconds whose source is the MAC of a NIC of this
// switch close the uplink.
func TestLoopClosesTheUplink(t *testing.T) {
	testkit.LeavesNothing(t)
	for name, learned := range map[string]bool{"the machine has been heard of": true, "it has not": false} {
		t.Run(name, func(t *testing.T) {
			x, _ := tunnel(42)
			a := newSide(t, 1, x, 1500)
			peer := peerOf(t, x)
			if learned {
				a.mustSend(plain(a.mac, broadcast, "hello"))
			}
			for range loopFrames + 2 { // the last two may fail: the uplink closes its socket after the others
				_, _ = peer.Write(datagram(42, plain(a.mac, broadcast, "hello")))
			}
			testkit.Eventually(t, "the uplink is closed", func() bool { return errors.Is(a.up.err(), ErrLoop) })
			testkit.ErrorSays(t, a.up.err(), "02:00:00:00:00:01 is that of machine1", "leads back here")
			testkit.Equal(t, "lines", a.log.having("ERROR"), 1)
			testkit.Equal(t, "dropped", a.up.link.Counters().Drops[wire.DropMAC], loopFrames)
			testkit.Equal(t, "counted", a.up.Stats()[Loop], loopFrames)
			if v := a.send(packet(t, plain(a.mac, broadcast, "hello"))); v != wire.Drop(wire.DropStopped) {
				t.Errorf("%+v", v)
			}
			b := newMachine(t, a.sw, 2, wire.LinkOptions{})
			b.mustSend(plain(b.mac, a.mac, "the rest of the switch goes on"))
			a.gets(plain(b.mac, a.mac, "the rest of the switch goes on"))
		})
	}
}

// Invariant: uplink: Fewer than 8 such frames in 10 seconds are dropped and counted, and the uplink
// stays open.
func TestFewFramesOfOursDoNotCloseTheUplink(t *testing.T) {
	testkit.LeavesNothing(t)
	var now atomic.Int64 // the uplink's time, in nanoseconds
	x, _ := tunnel(42)
	a := newSideOf(t, 1, x, Options{MTU: 1500, now: func() time.Time { return time.Unix(0, now.Load()) }})
	peer := peerOf(t, x)
	ours := datagram(42, plain(a.mac, broadcast, "hello"))
	sent := uint64(0)
	loops := func(n int) {
		for range n {
			sent++
			testkit.Must(peer.Write(ours))(t)
			testkit.Eventually(t, "a frame of ours to be dropped", func() bool { return a.up.Stats()[Loop] == sent })
		}
	}
	good := plain(macOf(9), a.mac, "friend")
	for range 5 {
		loops(loopFrames - 1)
		testkit.Must(peer.Write(datagram(42, good)))(t)
		a.gets(good)
		now.Add(int64(loopTime) + 1)
	}
	for range 3 * loopFrames { // at a steady rate, at most 7 in any 10 s of the uplink's time
		loops(1)
		now.Add(int64(loopTime)/(loopFrames-1) + 1)
	}
	testkit.Must(peer.Write(datagram(42, good)))(t)
	a.gets(good)
	testkit.OK(t, a.up.err())
	now.Add(int64(loopTime) + 1)
	loops(loopFrames - 1)
	now.Add(int64(loopTime)) // the last 7 frames are then exactly 10 s old, which still counts
	_, _ = peer.Write(ours)
	testkit.Eventually(t, "the uplink is closed", func() bool { return errors.Is(a.up.err(), ErrLoop) })
}

func TestOwnerIsToldOfTheEnd(t *testing.T) {
	testkit.LeavesNothing(t)
	x, _ := tunnel(42)
	a := newSide(t, 1, x, 1500)
	y, _ := tunnel(43)
	y.Name = "second"
	failed, log := make(chan error, 2), new(lines)
	up := testkit.Must(New(a.sw, Options{Config: y, Log: slog.New(log), Failed: func(err error) { failed <- err }}))(t)
	peer := peerOf(t, y)
	for range loopFrames {
		testkit.Must(peer.Write(datagram(43, plain(a.mac, broadcast, "hello"))))(t)
	}
	err := <-failed
	testkit.ErrorIs(t, err, ErrLoop)
	testkit.ErrorSays(t, err, "uplink second: ")
	testkit.OK(t, up.Close())
	testkit.Equal(t, "told again", len(failed), 0)
	testkit.Equal(t, "lines", log.having("ERROR"), 0)
}

func TestTwoUplinksToOneSwitchAreALoop(t *testing.T) {
	testkit.LeavesNothing(t)
	x, y := tunnel(1)
	v, w := tunnel(2)
	a, b := newSide(t, 1, x, 1500), newSide(t, 2, y, 1500)
	v.Name, w.Name = "second", "second"
	for s, c := range map[*side]Config{a: v, b: w} {
		up := testkit.Must(New(s.sw, Options{Config: c}))(t)
		defer up.Close()
	}
	testkit.Eventually(t, "an uplink is closed", func() bool {
		a.send(packet(t, plain(a.mac, broadcast, "hello")))
		for _, l := range a.sw.Links() {
			if u, ok := l.Port().(*port); ok && u.err() != nil {
				return true
			}
		}
		return false
	})
}

// Invariant: uplink: Options.Storm, if set, bounds the rate of received broadcasts and multicasts.
func TestBroadcastsThatComeInAreBounded(t *testing.T) {
	testkit.LeavesNothing(t)
	x, _ := tunnel(42)
	a := newSideOf(t, 1, x, Options{MTU: 1500, Storm: 1}) // one packet a second, after a first 32
	peer := peerOf(t, x)
	const sent = 96
	for range sent / 2 {
		for _, to := range []wire.MAC{broadcast, {1, 0, 0x5e, 0, 0, 1}} {
			testkit.Must(peer.Write(datagram(42, plain(macOf(9), to, "again"))))(t)
		}
	}
	last := plain(macOf(9), a.mac, "to one machine")
	testkit.Must(peer.Write(datagram(42, last)))(t)
	came := uint64(0)
	for !bytes.Equal(a.next(), last) {
		came++
	}
	dropped := uint64(0)
	testkit.Eventually(t, "the others are counted", func() bool {
		dropped = a.up.Stats()["storm"]
		return came+dropped == sent
	})
	testkit.Equal(t, "at the link", a.up.link.Counters().Drops[wire.DropStorm], dropped)
	if came < 32 || dropped < 32 {
		t.Errorf("%d came, and %d were dropped", came, dropped)
	}
	if n := a.log.having("WARN", "storm", "loop"); n < 1 || n > int(came) { // at most one line a second
		t.Errorf("%d lines", n)
	}
}

func TestOthersWithMACsOfOurs(t *testing.T) {
	testkit.LeavesNothing(t)
	x, _ := tunnel(42)
	a := newSide(t, 1, x, 1500)
	router := newMachine(t, a.sw, 7, wire.LinkOptions{Identity: &wire.Identity{MAC: macOf(7), Router: true}})
	bridge := newMachine(t, a.sw, 8, wire.LinkOptions{Identity: &wire.Identity{MAC: macOf(8), Any: true}})
	behind := macOf(88)
	bridge.mustSend(plain(behind, a.mac, "from behind the bridge"))
	a.gets(plain(behind, a.mac, "from behind the bridge"))
	peer := peerOf(t, x)
	for i, mac := range []wire.MAC{router.mac, behind} {
		testkit.Must(peer.Write(datagram(42, plain(mac, a.mac, "not ours"))))(t)
		testkit.Eventually(t, "it is dropped", func() bool {
			return a.up.Stats()["our-source"] == uint64(i+1) && a.up.link.Counters().Drops[wire.DropMAC] == uint64(i+1)
		})
	}
	testkit.Must(peer.Write(datagram(42, plain(macOf(9), a.mac, "good"))))(t)
	a.gets(plain(macOf(9), a.mac, "good"))
	testkit.OK(t, a.up.err())
}

// Invariant: uplink: At the start, NICs whose packets do not fit into a tunnel or tap device are an
// error.
func TestMTU(t *testing.T) {
	testkit.LeavesNothing(t)
	x, _ := tunnel(42)
	sw := wire.NewSwitch(nil)
	x.Name = "up0"
	_, err := New(sw, Options{Config: x, MTU: 65521, NIC: "a.nic0"})
	testkit.ErrorSays(t, err, "uplink up0: it carries packets of 65485 bytes",
		"has an MTU of 65535, of which VXLAN takes 50", "NIC a.nic0 has an MTU of 65521", "--mtu 65485")
	_, err = New(sw, Options{Config: x, MTU: 65521})
	testkit.ErrorSays(t, err, "NICs have an MTU of 65521")
	v6 := Config{Name: "up0", VXLAN: &VXLAN{VNI: 1}}
	v6.VXLAN.Local = mustAddr("[::1]:4789")
	v6.VXLAN.Remote = mustAddr("[::1]:4790")
	_, err = New(sw, Options{Config: v6, MTU: 65521})
	testkit.ErrorSays(t, err, "it carries packets of 65466 bytes", "VXLAN takes 70")
}

// Invariant: uplink: No sender waits for a socket that is full.
func TestPeerThatTakesNothing(t *testing.T) {
	testkit.LeavesNothing(t)
	path := t.TempDir() + "/up"
	a := newSide(t, 1, Config{Stream: &Stream{Listen: path}}, 1500)
	if st := testkit.Must(os.Stat(path))(t); st.Mode().Perm() != 0o600 {
		t.Errorf("mode %v", st.Mode())
	}
	f := plain(a.mac, broadcast, string(make([]byte, 1400)))
	a.mustSend(f) // before a peer has connected
	testkit.Eventually(t, "it is dropped", func() bool { return a.up.Stats()["no-peer"] == 1 })
	c := testkit.Must(net.Dial("unix", path))(t)
	testkit.Eventually(t, "the peer is there", func() bool { return a.up.c.(*stream).now() != nil })
	testkit.Eventually(t, "a frame is dropped", func() bool {
		v := a.send(packet(t, f))
		return v == wire.Drop(wire.DropUnknownDst) || a.up.Stats()["socket-full"] > 0
	})
	testkit.Equal(t, "drops of the link", a.up.link.Counters().Drops[wire.DropNoBuffer] > 0, true)
	// Each other port has its own share of the uplink's buffers, so its broadcasts are not dropped.
	other := newMachine(t, a.sw, 7, wire.LinkOptions{})
	third := newMachine(t, a.sw, 8, wire.LinkOptions{})
	const parts = 16
	for i := range parts {
		for _, m := range []*machine{other, third} {
			full := a.up.Stats()["socket-full"]
			m.send(packet(t, plain(m.mac, broadcast, fmt.Sprint("part ", i))))
			testkit.Equal(t, "frames of other ports that are dropped", a.up.Stats()["socket-full"]-full, 0)
			a.next()
		}
	}
	full := a.up.Stats()["socket-full"]
	a.send(packet(t, f))
	testkit.Equal(t, "frames of a port that has its part", a.up.Stats()["socket-full"]-full, 1)
	// Now the peer reads.
	cut := newCutter(len(f))
	read := func() []byte {
		for {
			if got, why, more, err := cut.next(); more || err != nil {
				testkit.OK(t, err)
				testkit.Equal(t, "frames that are refused", why, none)
				return got
			}
			testkit.OK(t, c.SetReadDeadline(time.Now().Add(testkit.Patience)))
			cut.filled(testkit.Must(c.Read(cut.room()))(t))
		}
	}
	for n, came := 0, 0; came < 2*parts; n++ {
		switch got := read(); {
		case bytes.Equal(got, f):
		case bytes.Contains(got, []byte("part ")):
			came++
		default:
			t.Fatalf("%x, after %d frames", got[:20], n)
		}
	}
	testkit.OK(t, c.Close())
	testkit.Eventually(t, "the peer is gone", func() bool { return a.up.c.(*stream).now() == nil })
	c = testkit.Must(net.Dial("unix", path))(t)
	defer c.Close()
	in := plain(macOf(9), a.mac, "from the next peer")
	testkit.Must(c.Write(streamOf(make([]byte, 60000), []byte("short"), in)))(t)
	a.gets(in)
	testkit.Equal(t, "too long", a.up.Stats()["too-long"], 1)
	testkit.Equal(t, "too short", a.up.Stats()["bad-frame"], 1)
	testkit.Must(c.Write([]byte{255, 255, 255, 255}))(t)
	if _, err := c.Read(make([]byte, 1<<20)); err == nil {
		_, err = c.Read(make([]byte, 1<<20))
		testkit.ErrorIs(t, err, unix.EPIPE)
	}
}

func TestConnectedStreamEndsWithItsPeer(t *testing.T) {
	testkit.LeavesNothing(t)
	path := t.TempDir() + "/up"
	_, err := New(wire.NewSwitch(nil), Options{Config: Config{Name: "u", Stream: &Stream{Connect: path}}})
	testkit.ErrorSays(t, err, "start the listener there first")
	l := testkit.Must(net.Listen("unix", path))(t)
	defer l.Close()
	a := newSide(t, 1, Config{Stream: &Stream{Connect: path}}, 1500)
	c := testkit.Must(l.Accept())(t)
	testkit.Must(c.Write(streamOf(plain(macOf(9), a.mac, "hello"))))(t)
	a.gets(plain(macOf(9), a.mac, "hello"))
	testkit.OK(t, c.Close())
	testkit.Eventually(t, "the uplink is closed", func() bool { return a.up.err() != nil })
	testkit.ErrorSays(t, a.up.err(), "the peer has hung up")
	_, err = New(wire.NewSwitch(nil), Options{Config: Config{Name: "u", Stream: &Stream{Listen: path}}})
	testkit.ErrorSays(t, err, "listens there: end it, or give another name")
}
