package virtio_test

import (
	"net/netip"
	"reflect"
	"testing"

	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/nic/nictest"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/wire"
	"vnic.dev/vnic/vhostuser"
)

// pause stops the rings and sets status 0, as QEMU's vhost_net_stop does. It returns the rings' bases.
func (g *suiteGuest) pause() (bases []uint32) {
	g.Helper()
	bases = g.bases()
	g.OK(g.front.SetStatus(0))
	return bases
}

// resume does what QEMU's vhost_net_start does, with rings that continue at these bases.
func (g *suiteGuest) resume(bases []uint32) {
	g.Helper()
	g.OK(g.front.SetMTU(uint16(g.Port().Limits().MaxFrame - 14)))
	for i := range g.rings {
		g.OK(g.front.SetEnable(i, true))
	}
	f, _ := g.front.Features()
	flags := vhostuser.Version | vhostuser.FlagNeedReply
	h := vhostuser.Header{Request: vhostuser.SetFeatures, Flags: flags, Size: 8}
	g.OK(g.front.Send(h, le.AppendUint64(nil, f), nil))
	if _, answer, err := g.front.Receive(); err != nil || le.Uint64(answer) != 0 {
		g.Fatal("SET_FEATURES: ", answer, err)
	}
	g.status(8)
	for i := range g.rings {
		g.setup(i, bases[i])
	}
	g.status(0xf)
}

func (g *suiteGuest) status(bits uint8) {
	g.Helper()
	was, err := g.front.GetStatus()
	g.OK(err)
	g.OK(g.front.SetStatus(was | bits))
	now, err := g.front.GetStatus()
	g.OK(err)
	testkit.Equal(g, "status", now, was|bits)
}

type settings struct {
	g          *suiteGuest
	generation uint32
	state      *control.State
	qpn        uint32
}

// setUp gives the NIC commands: rules steer TCP to port 2000 to queue 1, which has header split on, and there are an
// RSS table, a flow counter and an RDMA queue pair.
func (g *suiteGuest) setUp() *settings {
	g.Helper()
	p := g.Port()
	nictest.SplitTo(g, g, 1, 2000)
	g.OK(p.SetRSS(control.RSS{HashTypes: control.HashTCPv4, Table: []uint16{1, 0}}))
	_, err := p.AddFlowCounter(control.FlowCounter{Proto: 6, Local: netip.MustParseAddrPort("10.0.0.2:2000"),
		Remote: netip.MustParseAddrPort("10.0.0.1:1000")})
	g.OK(err)
	pd := testkit.Must(p.AddPD())(g)
	cq := testkit.Must(p.AddCQ(16))(g)
	qpn := testkit.Must(p.AddQP(control.QP{PD: pd, SendCQ: cq, RecvCQ: cq, MaxSend: 4, MaxRecv: 4}))(g)
	return &settings{g, p.Generation(), p.State(), qpn}
}

func (s *settings) kept() bool {
	p := s.g.Port()
	_, err := p.QPStatus(s.qpn)
	return err == nil && p.Generation() == s.generation && reflect.DeepEqual(p.State(), s.state)
}

func (s *settings) gone() bool {
	p := s.g.Port()
	_, err := p.QPStatus(s.qpn)
	now := p.State()
	return err != nil && p.Generation() != s.generation && !now.Splits[1].On && len(now.Rules)+len(now.Buffers)+
		len(now.FlowCounters) == 0
}

// One guest, or both, pause and continue between the frames of a transfer from GPU to GPU.
//
// Invariant: nic: After a pause by a frontend with RESET_DEVICE, a guest's NIC has the same state
// as before.
func TestTransferGoesOnOverPauses(t *testing.T) {
	for name, paused := range map[string][2]bool{"receiver": {false, true}, "sender": {true, false},
		"both": {true, true}} {
		t.Run(name, func(t *testing.T) {
			w := newWorldWith(t, rawOptions{pairs: 3, mtu: 9000, p2p: true, patience: patient})
			sender, receiver := w.A.setUp(), w.B.setUp()
			_, before := w.A.Port().QueueCounters(0)
			seq, lost := uint32(0), before.Drops
			frame := func() nictest.Frame {
				seq++
				return nictest.Make(w.B.mac, w.A.mac, nictest.Spec{Payload: 4096, Seq: seq * 4096})
			}
			moves := func() {
				f := frame()
				w.A.SendGPU(0, f)
				if got := nictest.Arrives(t, w.B, 1, &f); !got.Split || got.Dirty {
					t.Errorf("frame %d: split %v, dirty %v", seq, got.Split, got.Dirty)
				}
			}
			w.B.Post(1, 30)
			for range 10 {
				moves()
				var a, b []uint32
				if paused[0] {
					a = w.A.pause()
				}
				if paused[1] {
					b = w.B.pause()
				}
				if !sender.kept() || !receiver.kept() {
					t.Fatal("a guest that is stopped has lost what it had set up")
				}
				if !paused[0] {
					w.A.SendGPU(0, frame())
					lost++
				}
				if paused[1] {
					w.B.resume(b)
				}
				if paused[0] {
					w.A.resume(a)
				}
				moves()
			}
			if !sender.kept() || !receiver.kept() {
				t.Error("a guest that goes on has lost what it had set up")
			}
			rx, _ := w.B.Port().QueueCounters(1)
			_, tx := w.A.Port().QueueCounters(0)
			if rx.Packets != 20 || rx.DeviceBytes != 20*4096 || rx.HostBytes != 0 || tx.DeviceBytes != rx.DeviceBytes ||
				tx.Drops != lost {
				t.Errorf("rx %+v, tx %+v", rx, tx)
			}
		})
	}
}

// After status 0 of a frontend with RESET_DEVICE, the next start of the rings decides whether the driver is new, and
// with that, whether the NIC's state is cleared. Without RESET_DEVICE, status 0 clears it.
//
// Invariant: nic: After a pause by a frontend with RESET_DEVICE, a guest's NIC has the same state
// as before.
func TestPauseAndReset(t *testing.T) {
	ro := rawOptions{pairs: 3, mtu: 9000, patience: patient, wait: soon}
	noReset := ro
	noReset.noReset = true
	fresh := func(g *suiteGuest) {
		g.rings = nil
		for i := range 2 * ro.pairs {
			g.startRing(i)
		}
	}
	for _, c := range []struct {
		name string
		o    rawOptions
		do   func(g *suiteGuest)
		kept bool
	}{
		{"goes on", ro, func(g *suiteGuest) { g.resume(g.pause()) }, true},
		{"status 0 twice", ro, func(g *suiteGuest) {
			bases := g.pause()
			g.OK(g.front.SetStatus(0))
			g.resume(bases)
		}, true},
		{"status 0 without GET_VRING_BASE", ro, func(g *suiteGuest) {
			g.OK(g.front.SetStatus(0))
			var bases []uint32
			for i := range g.rings {
				bases = append(bases, g.usedIdx(i))
			}
			g.resume(bases)
		}, true},
		{"GET_VRING_BASE without status 0", ro, func(g *suiteGuest) { g.resume(g.bases()) }, true},
		{"hangs up while stopped", ro, func(g *suiteGuest) {
			bases := g.pause()
			g.redial(ro, func(i int) uint32 { return bases[i] })
		}, true},
		{"another driver", ro, func(g *suiteGuest) {
			g.pause()
			fresh(g)
		}, false},
		{"another driver on a connection of its own", ro, func(g *suiteGuest) {
			g.pause()
			g.hang()
			g.dial(ro)
			fresh(g)
		}, false},
		{"reset", ro, func(g *suiteGuest) {
			g.pause()
			g.OK(g.front.ResetDevice())
			fresh(g)
		}, false},
		{"reset, and no driver yet", ro, func(g *suiteGuest) {
			g.pause()
			g.OK(g.front.ResetDevice())
		}, false},
		{"reset without a pause", ro, func(g *suiteGuest) { g.OK(g.front.ResetDevice()) }, false},
		{"without RESET_DEVICE", noReset, func(g *suiteGuest) { g.pause() }, false},
		{"without RESET_DEVICE, goes on", noReset, func(g *suiteGuest) { g.resume(g.pause()) }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorldWith(t, c.o)
			s := w.Bad.setUp()
			c.do(w.Bad)
			if c.kept && !s.kept() || !c.kept && !s.gone() {
				t.Errorf("%+v", w.Bad.Port().State())
			}
			w.Moves(t)
		})
	}
}

// A ring may stop at index 0, as it does once in 2^16 chains. A driver whose rings start at 0 is then the same one; but
// if a ring stopped elsewhere, it is a new one.
func TestPauseAtZero(t *testing.T) {
	files, sw := nictest.Switch(t)
	g := newRawGuest(t, files, sw, 0, rawOptions{pairs: 2, mtu: 9000})
	s := g.setUp()
	bases := g.pause()
	if bases[0]|bases[1] != 0 {
		t.Fatalf("bases %v", bases)
	}
	if g.resume(bases); !s.kept() {
		t.Errorf("%+v", g.Port().State())
	}
	bases = g.pause()
	bases[0] = 7
	if g.resume(bases); !s.kept() {
		t.Errorf("%+v", g.Port().State())
	}
	bases = g.pause()
	bases[0] = 0
	if g.resume(bases); !s.gone() {
		t.Errorf("%+v", g.Port().State())
	}
}

// A frame that waits for a receiver when its sender pauses arrives once after the sender continues. A frame that waits
// for a receiver that pauses is dropped.
func TestPauseWhileFramesWait(t *testing.T) {
	w := newWorldWith(t, rawOptions{pairs: 3, mtu: 9000, p2p: true, patience: patient})
	waits := func(f nictest.Frame) {
		t.Helper()
		busy := w.B.Port().Link().Counters().Busy
		w.A.Queue(0, f)
		testkit.Eventually(t, "a frame that waits", func() bool { return w.B.Port().Link().Counters().Busy > busy })
	}
	f := tcp(w.A, w.B, 100)
	waits(f)
	bases := w.A.pause()
	w.B.Post(0, 2)
	w.A.resume(bases)
	w.A.Sent(0)
	nictest.Arrives(t, w.B, 0, &f)
	g := tcp(w.A, w.B, 101)
	w.A.Send(0, g)
	nictest.Arrives(t, w.B, 0, &g)

	_, before := w.A.Port().QueueCounters(0)
	waits(f)
	bases = w.B.pause()
	w.A.Sent(0)
	_, after := w.A.Port().QueueCounters(0)
	testkit.Equal(t, "frames dropped", after.Drops, before.Drops+1)
	w.B.resume(bases)
	w.Moves(t)
}

func TestPauseSuspendsRDMA(t *testing.T) {
	w := newWorldWith(t, rawOptions{pairs: 2, mtu: 9000, p2p: true, patience: patient})
	w.B.setUp()
	f := nictest.Make(w.B.mac, w.A.mac, nictest.Spec{UDP: true, Port: 4791, Payload: 64})
	drops := func(r wire.DropReason) uint64 { return w.B.Port().Link().Counters().Drops[r] }
	dropped := func(why wire.DropReason) {
		t.Helper()
		before := drops(why)
		w.A.Send(0, f)
		testkit.Equal(t, "frames dropped: "+why.String(), drops(why), before+1)
	}
	for range 3 {
		dropped(wire.DropRDMA)
		bases := w.B.pause()
		dropped(wire.DropStopped)
		w.B.resume(bases)
	}
	dropped(wire.DropRDMA)
}
