package virtio_test

import (
	"testing"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/nic/nictest"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/wire"
	"vnic.dev/vnic/virtq"
)

// Invariant: nic/virtio: A hostile guest harms its own queues only.
func TestBadReceiveChainStopsOnlyItsQueue(t *testing.T) {
	for name, c := range map[string]struct {
		split   bool
		out, in []virtq.Buf
	}{
		"readable":          {out: []virtq.Buf{{Addr: 0, Len: 4096}}},
		"readable first":    {out: []virtq.Buf{{Addr: 0, Len: 64}}, in: []virtq.Buf{{Addr: 0, Len: 4096}}},
		"shorter than hdr":  {in: []virtq.Buf{{Addr: 0, Len: 11}}},
		"short header":      {split: true, in: []virtq.Buf{{Addr: 0, Len: 267}, {Addr: rawGPU, Len: 4096}}},
		"no payload buffer": {split: true, in: []virtq.Buf{{Addr: 0, Len: 268}}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			q := 0
			if c.split {
				q = 1
				nictest.SplitTo(t, w.Bad, 1, 2000)
			}
			fault := w.Bad.fault(2 * q)
			w.Bad.OK(w.Bad.rings[2*q].Add(c.out, c.in, 1))
			w.Bad.publish(2 * q)
			w.A.Send(0, tcp(w.A, w.Bad, 100)) // dropped, not held
			w.Bad.broken(2*q, fault)
			w.A.Send(0, tcp(w.A, w.Bad, 100))
			w.Moves(t)
			w.Bad.base(2 * q)
		})
	}
}

// Invariant: nic/virtio: A hostile guest harms its own queues only.
func TestBadTransmitChainStopsOnlyItsQueue(t *testing.T) {
	for name, c := range map[string]struct{ out, in []virtq.Buf }{
		"writable":       {out: []virtq.Buf{{Addr: 0, Len: 200}}, in: []virtq.Buf{{Addr: 0, Len: 64}}},
		"writable first": {in: []virtq.Buf{{Addr: 0, Len: 64}}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			fault := w.Bad.fault(1)
			w.A.Post(0, 1)
			good := tcp(w.Bad, w.A, 50)
			w.Bad.Add(0, &good, false)
			w.Bad.OK(w.Bad.rings[1].Add(c.out, c.in, 9))
			w.Bad.publish(1)
			nictest.Arrives(t, w.A, 0, &good)
			w.Bad.broken(1, fault)
			w.Moves(t)
			testkit.Equal(t, "base", w.Bad.base(1), 2) // hello and good, without the bad one
		})
	}
}

// Invariant: nic/virtio: A hostile guest harms its own queues only.
func TestBadFramesAreDropped(t *testing.T) {
	w := newWorld(t)
	_, before := w.Bad.Port().QueueCounters(0)
	reasons := w.Bad.Port().Link().Counters().Drops[wire.DropBadFrame]
	w.Bad.Send(0, nictest.Frame{}, nictest.Frame{Header: make([]byte, 13)},
		nictest.Frame{Header: make([]byte, 14), Payload: make([]byte, 70000)})
	for _, gso := range []byte{3, 5, 0x7f} {
		f := tcp(w.Bad, w.A, 100)
		addr, mem := w.Bad.Alloc(12 + len(f.Header))
		copy(mem[12:], f.Header)
		mem[1] = gso
		w.Bad.OK(w.Bad.rings[1].Add([]virtq.Buf{{Addr: addr, Len: uint32(len(mem))}}, nil, 0))
		w.Bad.flight[0]++
	}
	w.Bad.publish(1)
	w.Bad.Sent(0)
	_, tx := w.Bad.Port().QueueCounters(0)
	testkit.Equal(t, "drops of the queue", tx.Drops, before.Drops+6)
	testkit.Equal(t, "their reason", w.Bad.Port().Link().Counters().Drops[wire.DropBadFrame], reasons+6)
	w.A.Post(0, 1)
	f := tcp(w.Bad, w.A, 5)
	w.Bad.Send(0, f)
	nictest.Arrives(t, w.A, 0, &f)
	testkit.Equal(t, "errors", len(w.Bad.dev.Errors()), 0)
	w.Moves(t)
}

// Invariant: nic: A guest that takes no frames stalls no other guest.
func TestDeadGuestStallsNobody(t *testing.T) { nictest.DeadGuestStallsNobody(t, newWorld(t)) }

// Invariant: nic: A guest that takes few frames delays frames to others only briefly.
func TestSlowReceiverStallsNobody(t *testing.T) { nictest.SlowReceiverStallsNobody(t, newWorld(t)) }

// Invariant: nic: Two guests alone on a switch lose nothing while the receiver pauses for less than
// the sender's patience.
func TestPausesLoseNothing(t *testing.T) {
	nictest.PausesLoseNothing(t, newWorldWith(t, rawOptions{pairs: 3, mtu: 9000, p2p: true, patience: patient}))
}

// Invariant: nic/virtio: Stopping a queue under traffic loses and repeats nothing; neither does a
// reconnect of the frontend.
func TestStopUnderTrafficLosesAndRepeatsNothing(t *testing.T) {
	w := newWorldWith(t, rawOptions{pairs: 3, mtu: 9000, patience: patient})
	const n = 20
	for i := range n {
		w.A.Queue(0, tcp(w.A, w.B, 100+i))
	}
	testkit.Eventually(t, "frames that wait", func() bool { return w.B.dev.Port().Link().Counters().Busy > 0 })
	base := w.A.base(1)
	testkit.Equal(t, "base", base, 1) // only the hello frame was sent: the queue has put the others back
	w.B.Post(0, n+1)
	w.A.setup(1, base)
	w.A.Sent(0)
	for i := range n {
		if got := w.B.Receive(0); len(got.Bytes()) != 54+100+i {
			t.Fatalf("frame %d has %d bytes", i, len(got.Bytes()))
		}
	}
	if rx, _ := w.B.Port().QueueCounters(0); rx.Packets != n || rx.Drops != 0 {
		t.Errorf("%+v", rx)
	}
	w.Moves(t)
}

// Although a guest's call eventfd is full, and even if it is a blocking one, frames between other guests still arrive.
func TestFullCallBlocksNobody(t *testing.T) {
	for name, block := range map[string]bool{"non-blocking": false, "blocking": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			call := w.Bad.calls[0]
			w.Bad.rings[0].EnableCall()
			w.Bad.Post(0, 8)
			var b [8]byte
			_, _ = unix.Read(call, b[:])
			full := [8]byte{0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
			_, err := unix.Write(call, full[:])
			w.Bad.OK(err)
			w.Bad.OK(unix.SetNonblock(call, !block))
			f := tcp(w.A, w.Bad, 10)
			w.A.Send(0, f)
			w.Bad.OK(unix.SetNonblock(call, true))
			nictest.Arrives(t, w.Bad, 0, &f)
			w.Moves(t)
		})
	}
}

// Invariant: nic: Truncating a guest's memory affects only that guest.
func TestTruncatedMemoryIsItsOwnersFault(t *testing.T) {
	for name, sender := range map[string]bool{"sender": true, "receiver": false} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.A.Post(0, 4)
			w.Bad.Post(0, 4)
			f := tcp(w.Bad, w.A, 6000)
			if sender { // the frame lies behind the new end of the guest's memory
				w.Bad.Add(0, &f, false)
			}
			w.Bad.OK(unix.Ftruncate(w.Bad.FD, 0))
			if sender {
				w.Bad.kick(1)
			} else {
				w.A.Send(0, tcp(w.A, w.Bad, 100))
			}
			if err := <-w.Bad.served; err == nil {
				t.Error("the frontend was served on")
			}
			w.Bad.served <- nil
			testkit.Equal(t, "errors of the other", len(w.A.dev.Errors()), 0)
			w.Moves(t)
		})
	}
}

// Waiting frames are lost if the frontend removes their memory.
func TestMemoryRemovedUnderTraffic(t *testing.T) {
	w := newWorldWith(t, rawOptions{pairs: 3, mtu: 9000, p2p: true, patience: patient})
	before := w.A.dev.Port().Link().Counters().Busy
	for range 4 {
		f := tcp(w.Bad, w.A, 4000)
		w.Bad.Add(0, &f, true)
	}
	w.Bad.publish(1)
	testkit.Eventually(t, "frames that wait", func() bool { return w.A.dev.Port().Link().Counters().Busy >= before+4 })
	w.Bad.OK(w.Bad.front.RemoveMemory(rawGPU, rawUser+rawGPU, rawGPUSize))
	w.A.Post(0, 8)
	w.Moves(t)
	w.Bad.Sent(0)
	testkit.Equal(t, "frames lost", w.Bad.Port().Link().Counters().Drops[wire.DropFault], 4)
	f := tcp(w.Bad, w.A, 4000)
	w.Bad.Send(0, f)
	nictest.Arrives(t, w.A, 0, &f)
	testkit.Equal(t, "queues that stopped", len(w.Bad.dev.Errors()), 0)
	w.Moves(t)
}

// When a frontend hangs up, the port keeps the driver's state. A driver whose rings then start anew does not inherit
// the state.
//
// Invariant: nic/virtio: A new driver inherits no state of the previous one.
func TestNewDriverInheritsNothing(t *testing.T) {
	w := newWorld(t)
	w.Bad.SetSplit(1, true)
	w.Bad.hang()
	if s := w.Bad.Port().State(); !s.Splits[1].On {
		t.Error("hanging up forgot the state: the frontend may come back")
	}
	w.Bad.connect(rawOptions{pairs: 3, mtu: 9000})
	if s := w.Bad.Port().State(); s.Splits[1].On {
		t.Error("a driver that begins anew has the state of another")
	}
	w.Moves(t)
}
