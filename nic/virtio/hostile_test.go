package virtio_test

import (
	"log/slog"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/control"
	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/nic/nictest"
	"vnic.dev/vnic/virtq"
	"vnic.dev/vnic/wire"
)

// world is a switch with three guests: two that behave, and one that each test is about.
type world struct {
	a, b, bad *suiteGuest
}

func newWorld(t *testing.T) *world {
	return newWorldWith(t, rawOptions{pairs: 3, mtu: 9000, p2p: true})
}

func newWorldWith(t *testing.T, ro rawOptions) *world {
	t.Helper()
	checkFDs(t)
	files := dma.NewFiles()
	sw := wire.NewSwitch(slog.New(slog.DiscardHandler))
	t.Cleanup(func() { _ = sw.Close() })
	w := &world{a: newSuiteGuest(t, files, sw, 0, ro), b: newSuiteGuest(t, files, sw, 1, ro),
		bad: newSuiteGuest(t, files, sw, 2, ro)}
	return w
}

func tcp(from, to *suiteGuest, n int) nictest.Frame {
	return nictest.Make(to.mac, from.mac, nictest.Spec{Payload: n})
}

// moves shows that the two good guests still move bytes.
func (w *world) moves(t *testing.T) {
	t.Helper()
	for _, p := range [][2]*suiteGuest{{w.a, w.b}, {w.b, w.a}} {
		f := tcp(p[0], p[1], 3000)
		p[1].Post(0, 1)
		p[0].Send(0, f)
		if got := p[1].Receive(0); string(got.Bytes()) != string(f.Bytes()) {
			t.Error("bytes differ")
		}
	}
}

// broken waits until a vring has stopped for an error.
func (g *suiteGuest) broken(t *testing.T, vring int, fault int) {
	t.Helper()
	fds := []unix.PollFd{{Fd: int32(fault), Events: unix.POLLIN}}
	if n, err := unix.Poll(fds, 20000); n != 1 {
		t.Fatalf("the error descriptor is not fired: %v", err)
	}
	if g.dev.Errors()[vring] == "" {
		t.Errorf("errors: %v", g.dev.Errors())
	}
}

func eventfd(t *testing.T) int {
	t.Helper()
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	testkit.OK(t, err)
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

// Invariant: nic/virtio: A hostile guest harms its own queues only.
func TestBadReceiveChainStopsOnlyItsQueue(t *testing.T) {
	for name, c := range map[string]struct {
		split   bool
		out, in []virtq.Buf
	}{
		"readable":           {out: []virtq.Buf{{Addr: 0, Len: 4096}}},
		"readable first":     {out: []virtq.Buf{{Addr: 0, Len: 64}}, in: []virtq.Buf{{Addr: 0, Len: 4096}}},
		"shorter than hdr":   {in: []virtq.Buf{{Addr: 0, Len: 11}}},
		"unmapped":           {in: []virtq.Buf{{Addr: 1 << 45, Len: 4096}}},
		"beyond its region":  {in: []virtq.Buf{{Addr: rawMem - 64, Len: 4096}}},
		"wraps":              {in: []virtq.Buf{{Addr: ^uint64(0) - 63, Len: 4096}}},
		"short header":       {split: true, in: []virtq.Buf{{Addr: 0, Len: 267}, {Addr: rawGPU, Len: 4096}}},
		"no payload buffer":  {split: true, in: []virtq.Buf{{Addr: 0, Len: 268}}},
		"payload unmapped":   {split: true, in: []virtq.Buf{{Addr: 0, Len: 268}, {Addr: rawGPU + rawGPUSize, Len: 4096}}},
		"header is unmapped": {split: true, in: []virtq.Buf{{Addr: 1 << 45, Len: 268}, {Addr: rawGPU, Len: 4096}}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			q := 0
			if c.split {
				q = 1
				w.bad.must(w.bad.Port().SetSplit(control.Split{Queue: 1, On: true}))
				_, err := w.bad.Port().AddFlow(control.FlowRule{Proto: 6, DstPort: 2000, Queue: 1})
				w.bad.must(err)
			}
			fault := eventfd(t)
			w.bad.must(w.bad.front.SetVringErr(2*q, fault))
			w.bad.must(w.bad.rings[2*q].Add(c.out, c.in, 1))
			w.bad.publish(2 * q)
			w.a.Send(0, tcp(w.a, w.bad, 100)) // dropped, and not waited for
			w.bad.broken(t, 2*q, fault)
			w.a.Send(0, tcp(w.a, w.bad, 100))
			w.moves(t)
			if _, err := w.bad.front.GetVringBase(2 * q); err != nil {
				t.Error(err)
			}
		})
	}
}

// Invariant: nic/virtio: A hostile guest harms its own queues only.
func TestBadTransmitChainStopsOnlyItsQueue(t *testing.T) {
	for name, c := range map[string]struct{ out, in []virtq.Buf }{
		"writable": {out: []virtq.Buf{{Addr: 0, Len: 200}}, in: []virtq.Buf{{Addr: 0, Len: 64}}},
		"unmapped": {out: []virtq.Buf{{Addr: 1 << 45, Len: 200}}},
		"huge":     {out: []virtq.Buf{{Addr: 0, Len: ^uint32(0)}}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			fault := eventfd(t)
			w.bad.must(w.bad.front.SetVringErr(1, fault))
			w.a.Post(0, 1)
			good := tcp(w.bad, w.a, 50)
			w.bad.add(0, &good, false)
			w.bad.must(w.bad.rings[1].Add(c.out, c.in, 9))
			w.bad.publish(1)
			if got := w.a.Receive(0); string(got.Bytes()) != string(good.Bytes()) { // what came before it is sent
				t.Error("bytes differ")
			}
			w.bad.broken(t, 1, fault)
			w.moves(t)
			if base, err := w.bad.front.GetVringBase(1); err != nil || base != 2 { // hello, good; not the bad one
				t.Errorf("base %d, %v", base, err)
			}
		})
	}
}

// Frames that are none are gone and harm nobody.
//
// Invariant: nic/virtio: A hostile guest harms its own queues only.
func TestBadFramesAreDropped(t *testing.T) {
	w := newWorld(t)
	w.bad.Send(0, nictest.Frame{}, nictest.Frame{Header: make([]byte, 13)},
		nictest.Frame{Header: make([]byte, 14), Payload: make([]byte, 70000)})
	for _, gso := range []byte{3, 5, 0x7f} {
		f := tcp(w.bad, w.a, 100)
		addr, mem := w.bad.alloc(12 + len(f.Header))
		copy(mem[12:], f.Header)
		mem[1] = gso
		w.bad.must(w.bad.rings[1].Add([]virtq.Buf{{Addr: addr, Len: uint32(len(mem))}}, nil, 0))
		w.bad.flight[0]++
	}
	w.bad.publish(1)
	w.bad.Sent(0)
	w.a.Post(0, 1)
	f := tcp(w.bad, w.a, 5)
	w.bad.Send(0, f)
	if got := w.a.Receive(0); string(got.Bytes()) != string(f.Bytes()) || len(w.bad.dev.Errors()) != 0 {
		t.Errorf("errors %v", w.bad.dev.Errors())
	}
	w.moves(t)
}

// A guest that never posts buffers holds up neither the sender's frames to another nor the sender for ever.
//
// Invariant: nic: A guest that takes nothing stalls nobody.
func TestDeadGuestStallsNobody(t *testing.T) {
	w := newWorld(t)
	w.b.Post(0, 8)
	for range 8 {
		w.a.Queue(0, tcp(w.a, w.bad, 1000), tcp(w.a, w.b, 1000))
	}
	for range 8 {
		w.b.Receive(0)
	}
	w.moves(t)
	w.a.Sent(0) // patience ends
	w.a.Send(0, tcp(w.a, w.bad, 10))
	w.moves(t)
	w.bad.Post(0, 2) // it lives after all: nothing is held against it
	f := tcp(w.a, w.bad, 20)
	w.a.Send(0, f)
	if got := w.bad.Receive(0); string(got.Bytes()) != string(f.Bytes()) {
		t.Error("bytes differ")
	}
}

// Frames that wait for a receiver when their queue is stopped are the driver's again: each arrives
// once after the restart.
//
// Invariant: nic/virtio: Stopping a queue under traffic loses and repeats nothing, nor does a
// frontend that comes back.
func TestStopUnderTrafficLosesAndRepeatsNothing(t *testing.T) {
	w := newWorldWith(t, rawOptions{pairs: 3, mtu: 9000, patience: patient})
	const n = 20
	for i := range n {
		w.a.Queue(0, tcp(w.a, w.b, 100+i))
	}
	for w.b.dev.Port().Link().Counters().Busy == 0 { // they wait
		runtime.Gosched()
	}
	base, err := w.a.front.GetVringBase(1)
	w.a.must(err)
	if base != 1 { // the hello before
		t.Errorf("base %d", base)
	}
	w.b.Post(0, n+1)
	w.a.setup(1, base)
	w.a.Sent(0)
	for i := range n {
		if got := w.b.Receive(0); len(got.Bytes()) != 54+100+i {
			t.Fatalf("frame %d has %d bytes", i, len(got.Bytes()))
		}
	}
	if rx, _ := w.b.Port().QueueCounters(0); rx.Packets != n || rx.Drops != 0 {
		t.Errorf("%+v", rx)
	}
	w.moves(t)
}

// A call descriptor that is full, even one that blocks, stops nobody for long.
func TestFullCallBlocksNobody(t *testing.T) {
	for name, block := range map[string]bool{"non-blocking": false, "blocking": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			call := w.bad.calls[0]
			w.bad.rings[0].EnableCall() // ask for calls
			w.bad.Post(0, 8)
			var b [8]byte
			_, _ = unix.Read(call, b[:])
			full := [8]byte{0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
			_, err := unix.Write(call, full[:])
			w.bad.must(err)
			w.bad.must(unix.SetNonblock(call, !block))
			f := tcp(w.a, w.bad, 10)
			w.a.Send(0, f)
			w.bad.must(unix.SetNonblock(call, true))
			if got := w.bad.Receive(0); string(got.Bytes()) != string(f.Bytes()) {
				t.Error("bytes differ")
			}
			w.moves(t)
		})
	}
}

// A guest whose memory is truncated under traffic loses its NIC; who sends to it, or gets frames of it, does not.
//
// Invariant: nic: A fault in a guest's truncated memory is that guest's alone.
func TestTruncatedMemoryIsItsOwnersFault(t *testing.T) {
	for name, sender := range map[string]bool{"sender": true, "receiver": false} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.a.Post(0, 4)
			w.bad.Post(0, 4)
			f := tcp(w.bad, w.a, 6000)
			if sender { // the frame waits in the ring, its payload behind the new end
				w.bad.add(0, &f, false)
			}
			w.bad.must(unix.Ftruncate(w.bad.fd, 0))
			if sender {
				w.bad.kick(1)
			} else {
				w.a.Send(0, tcp(w.a, w.bad, 100))
			}
			if err := <-w.bad.served; err == nil {
				t.Error("the frontend was served on")
			}
			w.bad.served <- nil // for the cleanup
			if len(w.a.dev.Errors()) != 0 {
				t.Errorf("blamed: %v", w.a.dev.Errors())
			}
			w.moves(t)
		})
	}
}

// Memory that goes away while frames wait in it ends the queue that needs it, and nothing else.
func TestMemoryRemovedUnderTraffic(t *testing.T) {
	w := newWorldWith(t, rawOptions{pairs: 3, mtu: 9000, p2p: true, patience: patient})
	for range 4 {
		f := tcp(w.bad, w.a, 4000)
		w.bad.add(0, &f, true)
	}
	w.bad.publish(1)
	for w.a.dev.Port().Link().Counters().Busy == 0 {
		runtime.Gosched()
	}
	w.bad.must(w.bad.front.RemoveMemory(rawGPU, rawUser+rawGPU, rawGPUSize))
	w.a.Post(0, 8)
	w.moves(t)
	for w.bad.dev.Errors()[1] == "" {
		runtime.Gosched()
	}
	w.moves(t)
}

// What one driver has set up dies with it; a driver that goes on where it was keeps it.
//
// Invariant: nic/virtio: A new driver inherits nothing of the one before.
func TestNewDriverInheritsNothing(t *testing.T) {
	w := newWorld(t)
	w.bad.must(w.bad.Port().SetSplit(control.Split{Queue: 1, On: true}))
	w.bad.hangUp()
	if s := w.bad.Port().State(); !s.Splits[1].On {
		t.Error("hanging up forgot the state: the frontend may come back")
	}
	w.bad.connect(rawOptions{pairs: 3, mtu: 9000})
	if s := w.bad.Port().State(); s.Splits[1].On {
		t.Error("a driver that begins anew has the state of another")
	}
	w.moves(t)
}
