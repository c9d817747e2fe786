package vhostuser

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/peer"
	"vnic.dev/vnic/internal/peer/peertest"
	"vnic.dev/vnic/internal/testkit"
)

func TestServeLifeOfARing(t *testing.T) {
	h, g, l := serving(t)
	gotF, gotP, err := l.Negotiate(testFeatures|1<<63, uint64(allProtocol|ProtocolPagefault))
	must(t, err)
	if gotF != testFeatures|FeatureProtocol || gotP != uint64(allProtocol) || l.Queues() != 4 {
		t.Errorf("negotiated %#x, %#x, %d queues", gotF, gotP, l.Queues())
	}
	must(t, l.AddMemory(g.fd, 0, userBase, guestSize, 0))
	must(t, l.SetEnable(0, true))
	v := g.vring(0)
	v.Base = 9
	must(t, l.SetupVring(v))
	h.answerBase(21)
	l.wantBase(t, 0, 21)
	h.WantCalls(
		fmt.Sprintf("SetFeatures %#x", testFeatures|FeatureProtocol),
		"MemoryChanged 1",
		"EnableQueue 0 true",
		"StartQueue 0 size 128 at 0x1000 0x2000 0x3000 base 9 running false",
		"StopQueue 0",
	)
	l.wantBase(t, 0, 21)
	// QEMU repeats the whole setup to start a ring again; the kick eventfd alone starts it.
	must(t, l.SetVringAddr(0, v.Desc, v.Avail, v.Used))
	h.WantCalls()
	must(t, l.SetVringKick(0, v.Kick))
	h.WantCalls("StartQueue 0 size 128 at 0x1000 0x2000 0x3000 base 21 running false")
	must(t, l.HangUp())
	h.WantCalls("StopQueue 0", "EnableQueue 0 false", "Disconnected")
}

// TestServeQEMUSequence replays requests of QEMU 11.1.2 with two queue pairs: as it connects, starts the device,
// stops and resets it, and passes on the next driver's features.
func TestServeQEMUSequence(t *testing.T) {
	h, g, l := serving(t)
	send := func(r Request, flags Flags, body []byte, fds []int) {
		t.Helper()
		must(t, l.Send(Header{r, Version | flags, uint32(len(body))}, body, fds))
	}
	answered := func(r Request, want []byte) {
		t.Helper()
		hd, got, err := l.Receive()
		must(t, err)
		if hd.Request != r || hd.Flags != Version|FlagReply || !slices.Equal(got, want) {
			t.Fatalf("%v: %v %v % x, want % x", r, hd.Request, hd.Flags, got, want)
		}
	}
	tell := func(r Request, body []byte, fds ...int) { send(r, 0, body, fds) }
	ask := func(r Request, body []byte, want []byte) {
		t.Helper()
		send(r, 0, body, nil)
		answered(r, want)
	}
	need := func(r Request, body []byte, fds ...int) {
		t.Helper()
		send(r, FlagNeedReply, body, fds)
		answered(r, zeros(8))
	}
	u, state := u64Body, stateBody
	feats := u(testFeatures | FeatureProtocol)
	vr := []VringSetup{g.vring(0), g.vring(1), g.vring(2), g.vring(3)}

	for pair := range uint32(2) { // at the chardev's OPENED event QEMU does this for each pair
		ask(GetFeatures, nil, feats)
		ask(GetProtocolFeatures, nil, u(uint64(allProtocol)))
		tell(SetProtocolFeatures, u(uint64(allProtocol&^ProtocolConfig)))
		ask(GetQueueNum, nil, u(4))
		ask(GetMaxMemSlots, nil, u(509))
		if pair == 0 {
			a, b := testkit.SocketPair(t)
			defer a.Close()
			defer b.Close()
			f, err := b.File()
			must(t, err)
			need(SetBackendReqFD, nil, int(f.Fd()))
			f.Close()
			tell(SetOwner, nil)
		}
		ask(GetFeatures, nil, feats)
		for i := 2 * pair; i < 2*pair+2; i++ { // QEMU: call is its masked notifier, err its error notifier
			need(SetVringCall, u(uint64(i)), vr[i].Call)
			need(SetVringErr, u(uint64(i)), vr[i].Call)
		}
	}
	h.WantCalls()
	reset := func() {
		t.Helper()
		tell(ResetDevice, nil)
		for i := range uint32(4) { // QEMU enables only the first pair until the guest asks for more
			need(SetVringEnable, state(i, 1-i/2))
		}
	}
	reset()
	h.WantCalls("Reset", "EnableQueue 0 true", "EnableQueue 1 true")
	need(NetSetMTU, u(1500))
	for pair := range uint32(2) { // at DRIVER_OK: QEMU's vhost_net_start, for each pair
		need(SetVringEnable, state(2*pair, 1))
		need(SetVringEnable, state(2*pair+1, 1))
		tell(SetFeatures, feats)
		if pair == 0 {
			need(AddMemReg, singleBody(memRegion{0, guestSize, userBase, 0}), g.fd)
		}
		for i := 2 * pair; i < 2*pair+2; i++ {
			tell(SetVringNum, state(i, 256))
			tell(SetVringBase, state(i, 0))
			a := vringAddr{Index: i, Desc: vr[i].Desc, Avail: vr[i].Avail, Used: vr[i].Used}
			tell(SetVringAddr, peer.Append(nil, a))
			need(SetVringKick, u(uint64(i)), vr[i].Kick)
			need(SetVringCall, u(uint64(i)), vr[i].Call)
		}
		tell(SetStatus, u(uint64(4*pair+11)))
	}
	ask(GetFeatures, nil, feats)
	h.WantCalls(
		"MTU 1500",
		fmt.Sprintf("SetFeatures %#x", testFeatures|FeatureProtocol),
		"MemoryChanged 1",
		"StartQueue 0 size 256 at 0x1000 0x2000 0x3000 base 0 running false", "SetCall 0 true",
		"StartQueue 1 size 256 at 0x4000 0x5000 0x6000 base 0 running false", "SetCall 1 true",
		"SetStatus 0xb",
		"EnableQueue 2 true", "EnableQueue 3 true",
		"StartQueue 2 size 256 at 0x7000 0x8000 0x9000 base 0 running false", "SetCall 2 true",
		"StartQueue 3 size 256 at 0xa000 0xb000 0xc000 base 0 running false", "SetCall 3 true",
		"SetStatus 0xf",
	)
	h.mu.Lock()
	for i, v := range h.live {
		if v.Kick < 0 || v.Call < 0 || v.Err < 0 {
			t.Errorf("queue %d: %+v", i, v)
		}
	}
	h.mu.Unlock()
	for i := range uint32(4) { // as QEMU's vhost_net_stop does
		ask(GetVringBase, state(i, 0), state(i, 0))
	}
	tell(SetStatus, u(0))
	ask(GetStatus, nil, u(0))
	h.WantCalls("StopQueue 0", "StopQueue 1", "StopQueue 2", "StopQueue 3", "SetStatus 0x0")
	reset()
	h.WantCalls("EnableQueue 0 false", "EnableQueue 1 false", "EnableQueue 2 false", "EnableQueue 3 false", "Reset",
		"EnableQueue 0 true", "EnableQueue 1 true")
	tell(SetFeatures, feats) // QEMU passes on that the next driver acks the same features
	ask(GetStatus, nil, u(0))
	h.WantCalls(fmt.Sprintf("SetFeatures %#x", testFeatures|FeatureProtocol))
}

func TestServeEnablesRingsWithoutBit30(t *testing.T) {
	h, g, l := serving(t)
	if f, p, err := l.Negotiate(testFeatures, 0); err != nil || f != testFeatures || p != 0 || l.Queues() != 1 {
		t.Fatalf("%#x %#x %v", f, p, err)
	}
	must(t, l.SetMemTable([]MemRegion{{g.fd, 0, userBase, guestSize, 0}}))
	must(t, l.SetupVring(g.vring(0)))
	must(t, l.command(ResetOwner, nil)) // does nothing: without bit 30 the frontend could not enable the rings again
	_, err := l.queryU64(GetFeatures)   // after its answer all requests before have been handled
	must(t, err)
	h.WantCalls(
		fmt.Sprintf("SetFeatures %#x", testFeatures),
		"EnableQueue 0 true", "EnableQueue 1 true", "EnableQueue 2 true", "EnableQueue 3 true",
		"MemoryChanged 1",
		"StartQueue 0 size 128 at 0x1000 0x2000 0x3000 base 0 running false",
	)
}

// SET_MEM_TABLE, which replaces all regions, waits at most once for workers inside the space.
func TestServeWaitsOnceForATable(t *testing.T) {
	h, g, l := serving(t)
	l.negotiate(t, 0)
	var table []MemRegion
	for i := range uint64(8) {
		table = append(table, MemRegion{g.fd, i << 32, userBase + i<<32, 4096, 4096 * i})
	}
	for range 2 {
		must(t, l.SetMemTable(table))
	}
	_, err := l.queryU64(GetFeatures) // after its answer both tables have been set
	must(t, err)
	if n := h.Space.Waits(); n != 0 || len(h.Space.Regions()) != 8 {
		t.Errorf("waited %d times without a worker; %d regions", n, len(h.Space.Regions()))
	}
	token := h.Space.Enter()
	must(t, l.SetMemTable(table))
	for h.Space.Waits() == 0 {
		runtime.Gosched()
	}
	h.Space.Leave(token)
	_, err = l.queryU64(GetFeatures)
	must(t, err)
	if n := h.Space.Waits(); n != 1 {
		t.Errorf("waited %d times for one worker", n)
	}
}

func TestServeLiveChanges(t *testing.T) {
	h, g, l := serving(t)
	g.start(l, 1)
	h.Take()
	h.answerBase(5)
	v := g.vring(0)
	state := func(r Request, n uint32) error { return l.vringState(r, 0, n) }
	for _, c := range []struct {
		name string
		do   func() error
		want []string
	}{
		{"same address", func() error { return l.SetVringAddr(0, v.Desc, v.Avail, v.Used) }, nil},
		{"same size", func() error { return state(SetVringNum, 128) }, nil},
		{"call", func() error { return l.SetVringCall(0, v.Call) }, []string{"SetCall 0 true"}},
		{"no call", func() error { return l.SetVringCall(0, -1) }, []string{"SetCall 0 false"}},
		{"err", func() error { return l.SetVringErr(0, v.Call) }, []string{"SetErr 0 true"}},
		{"enabled again", func() error { return l.SetEnable(0, true) }, nil},
		{"address", func() error { return l.SetVringAddr(0, v.Desc, v.Avail, v.Used+4096) },
			[]string{"StopQueue 0", "StartQueue 0 size 128 at 0x1000 0x2000 0x4000 base 5 running true"}},
		{"size", func() error { return state(SetVringNum, 64) },
			[]string{"StopQueue 0", "StartQueue 0 size 64 at 0x1000 0x2000 0x4000 base 5 running true"}},
		{"base", func() error { return state(SetVringBase, 40) },
			[]string{"StopQueue 0", "StartQueue 0 size 64 at 0x1000 0x2000 0x4000 base 40 running true"}},
		{"kick", func() error { return l.SetVringKick(0, v.Kick) },
			[]string{"StopQueue 0", "StartQueue 0 size 64 at 0x1000 0x2000 0x4000 base 5 running true"}},
		{"polled", func() error { return l.SetVringKick(0, -1) },
			[]string{"StopQueue 0", "StartQueue 0 size 64 at 0x1000 0x2000 0x4000 base 5 running true"}},
		{"owner reset", func() error { return l.command(ResetOwner, nil) }, []string{"EnableQueue 0 false"}},
		{"same features", func() error { return l.command(SetFeatures, u64Body(testFeatures|FeatureProtocol)) },
			nil},
	} {
		if err := c.do(); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if got := h.Take(); !slices.Equal(got, c.want) {
			t.Errorf("%s: device was told %q, want %q", c.name, got, c.want)
		}
	}
	h.mu.Lock()
	if v := h.live[0]; v.Kick != -1 || v.Call != -1 || v.Err < 0 {
		t.Errorf("device has %+v", v)
	}
	h.mu.Unlock()
}

// Invariant: vhostuser: When a ring's memory is removed, moved or replaced by another file's, the
// ring is stopped, and started again where it is mapped.
func TestServeMemoryChanges(t *testing.T) {
	h, g, l := serving(t)
	g.start(l, 2)
	h.Take()
	h.answerBase(8)
	const half = guestSize / 2
	stops := []string{"StopQueue 0", "StopQueue 1"}
	starts := []string{
		"StartQueue 0 size 128 at 0x100001000 0x100002000 0x100003000 base 8 running true",
		"StartQueue 1 size 128 at 0x100004000 0x100005000 0x100006000 base 8 running true",
	}
	moves := slices.Concat(stops, []string{"MemoryChanged 1"}, starts)

	must(t, l.RemoveMemory(0, userBase, guestSize))
	h.WantCalls("StopQueue 0", "StopQueue 1", "MemoryChanged 0")
	must(t, l.AddMemory(g.fd, half, userBase+half, half, half))
	h.WantCalls("MemoryChanged 1")
	must(t, l.AddMemory(g.fd, 0, userBase, half, 0))
	h.WantCalls("MemoryChanged 2",
		"StartQueue 0 size 128 at 0x1000 0x2000 0x3000 base 8 running true",
		"StartQueue 1 size 128 at 0x4000 0x5000 0x6000 base 8 running true")

	// No ring lies in this memory.
	bar := memfd(t, 1<<16)
	must(t, l.AddMemory(bar, 1<<40, userBase+1<<30, 1<<16, 0))
	must(t, l.RemoveMemory(1<<40, userBase+1<<30, 1<<16))
	h.WantCalls("MemoryChanged 3", "MemoryChanged 2")

	must(t, l.SetMemTable([]MemRegion{{g.fd, 0, userBase, guestSize, 0}}))
	h.WantCalls("MemoryChanged 1")
	must(t, l.SetMemTable([]MemRegion{{g.fd, 1 << 32, userBase, guestSize, 0}}))
	h.WantCalls(moves...)

	other := newGuest(t)
	for _, r := range []MemRegion{{other.fd, 1 << 32, userBase, guestSize, 0}, {other.fd, 1 << 32, userBase, half, half}} {
		must(t, l.SetMemTable([]MemRegion{r}))
		h.WantCalls(moves...)
	}
	must(t, l.SetMemTable([]MemRegion{{other.fd, 1 << 32, userBase, half, half}}))
	h.WantCalls("MemoryChanged 1")

	// A table that the backend cannot map changes no memory.
	wantRefused(t, "table beyond its file", l.SetMemTable([]MemRegion{{g.fd, 0, userBase, 2 * guestSize, 0}}))
	h.WantCalls(slices.Concat(stops, starts)...)

	must(t, l.SetMemTable(nil))
	h.WantCalls("StopQueue 0", "StopQueue 1", "MemoryChanged 0")
}

func TestServeRingBeforeItsMemory(t *testing.T) {
	h, g, l := serving(t)
	l.negotiate(t, allProtocol)
	v := g.vring(0)
	wantRefused(t, "ring without memory", l.SetupVring(v)) // its kick is refused, but the ring is remembered
	h.Take()
	must(t, l.AddMemory(g.fd, 0, userBase, guestSize, 0))
	h.WantCalls("MemoryChanged 1", "StartQueue 0 size 128 at 0x1000 0x2000 0x3000 base 0 running false")
}

// TestServeTellsOfMemoryThatIsNotShared: QEMU sends no region for memory that is not shared. The backend logs the
// remedy when a ring lies there.
func TestServeTellsOfMemoryThatIsNotShared(t *testing.T) {
	h, g, l := serving(t)
	l.negotiate(t, allProtocol&^ProtocolReplyAck)
	must(t, l.SetupVring(g.vring(0)))
	must(t, l.HangUp())
	if got := h.Logs.String(); !strings.Contains(got, "level=ERROR") || !strings.Contains(got, "share=on") ||
		!strings.Contains(got, "SET_VRING_KICK") {
		t.Errorf("log:\n%s", got)
	}
}

func TestServeManyRegions(t *testing.T) {
	h, g, l := serving(t)
	l.negotiate(t, allProtocol)
	for i := range uint64(MaxMemSlots) {
		must(t, l.AddMemory(g.fd, i*8192, userBase+i*8192, 4096, 4096))
	}
	wantRefused(t, "one slot more", l.AddMemory(g.fd, 1<<40, 1<<46, 4096, 0))
	testkit.Equal(t, "regions", len(h.Space.Regions()), MaxMemSlots)
}

func TestServeSmallRequests(t *testing.T) {
	h, _, l := serving(t)
	l.negotiate(t, allProtocol)
	h.Take()
	must(t, l.SetMTU(9000))
	wantRefused(t, "MTU 67", l.SetMTU(67))
	must(t, l.SendRARP([6]byte{2, 0x76, 0x6e, 1, 2, 3}))
	must(t, l.SetStatus(7))
	if s, err := l.GetStatus(); err != nil || s != 7 {
		t.Errorf("status %d, %v", s, err)
	}
	h.WantCalls("MTU 9000", "SendRARP 02766e010203", "SetStatus 0x7")
	must(t, l.SetConfig(2, []byte{1, 2, 3}))
	b := make([]byte, 4)
	must(t, l.GetConfig(1, b))
	if !slices.Equal(b, []byte{0, 1, 2, 3}) {
		t.Errorf("configuration % x", b)
	}
	for _, err := range []error{
		l.GetConfig(20, make([]byte, 5)), l.GetConfig(1<<32-1, b), l.SetConfig(24, b),
		l.command(SetConfig, append([]byte{0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0}, 0)), // flags 1: for live migration
	} {
		wantRefused(t, "configuration", err)
	}
	must(t, l.GetConfig(0, make([]byte, 24)))
	if err := l.GetConfig(0, make([]byte, MaxConfig+1)); err == nil {
		t.Error("configuration longer than a message")
	}
}

func TestServeReportsFailures(t *testing.T) {
	boom := errors.New("boom")
	for _, c := range []struct {
		method string
		do     func(g *guest, l *link) error
		ends   bool // without REPLY_ACK the failure ends the connection
	}{
		{"SetFeatures",
			func(_ *guest, l *link) error { return l.command(SetFeatures, u64Body(FeatureVersion1)) }, true},
		{"MemoryChanged",
			func(g *guest, l *link) error { return l.SetMemTable([]MemRegion{{g.fd, 0, userBase, guestSize, 0}}) }, true},
		{"MTU", func(_ *guest, l *link) error { return l.SetMTU(1500) }, false},
		{"SetStatus", func(_ *guest, l *link) error { return l.SetStatus(1) }, false},
		{"Reset", func(_ *guest, l *link) error { return l.ResetDevice() }, false},
		{"EnableQueue", func(_ *guest, l *link) error { return l.SetEnable(3, true) }, false},
		{"StartQueue", func(g *guest, l *link) error { return l.SetupVring(g.vring(3)) }, false},
		{"SetCall", func(g *guest, l *link) error { return l.SetVringCall(0, g.vring(0).Call) }, false},
		{"SetErr", func(g *guest, l *link) error { return l.SetVringErr(0, g.vring(0).Call) }, false},
	} {
		for _, ack := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/ack=%t", c.method, ack), func(t *testing.T) {
				testkit.CheckFDs(t)
				h, g := newHost(t), newGuest(t)
				l := h.connect()
				g.start(l, 1)
				if !ack {
					// the last request of this connection that the backend acknowledges
					must(t, l.command(SetProtocolFeatures, u64Body(uint64(allProtocol&^ProtocolReplyAck))))
					l.protocol &^= ProtocolReplyAck
				}
				h.FailWith(c.method, boom)
				err := c.do(g, l)
				if ack != errors.Is(err, ErrRefused) {
					t.Errorf("frontend: %v", err)
				}
				_, err = l.queryU64(GetFeatures)
				if ends := err != nil; ends != (c.ends && !ack) {
					t.Errorf("afterwards: %v", err)
				}
				h.FailWith(c.method, nil)
				if err := l.HangUp(); errors.Is(err, boom) != (c.ends && !ack) {
					t.Errorf("Serve: %v", err)
				}
				h.servesAnother()
			})
		}
	}
}

func TestServeAnswersGetVringBaseOfAFailingDevice(t *testing.T) {
	h, g, l := serving(t)
	g.start(l, 1)
	h.answerBase(3)
	h.FailWith("StopQueue", errors.New("boom"))
	l.wantBase(t, 0, 3)
	h.FailWith("StopQueue", nil)
}

func TestServeEndsWithItsContext(t *testing.T) {
	h, g, l := serving(t)
	g.start(l, 2)
	l.Stop()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	a, b := testkit.SocketPair(t)
	defer a.Close()
	peertest.WantError(t, "Serve", h.back.Serve(ctx, b), context.Canceled)
}

func TestServeOneConnectionAtATime(t *testing.T) {
	h, g, l := serving(t)
	g.start(l, 2)
	h.connect().WantEnd(ErrBusy)
	h.works(l)
}

// TestServeEndsOnAFault: a frontend truncates its memory, and the device then reads it.
func TestServeEndsOnAFault(t *testing.T) {
	h, g, l := serving(t)
	g.start(l, 1)
	must(t, unix.Ftruncate(g.fd, 0))
	done := make(chan error)
	dma.Go(func() {
		_, err := h.ByteAt(0x1000)
		done <- err
	})
	peertest.WantError(t, "device", <-done, dma.ErrFault)
	l.WantEnd(dma.ErrFault)
}

func TestServeStartsOnAFault(t *testing.T) {
	h, g, l := serving(t)
	g.start(l, 0)
	must(t, unix.Ftruncate(g.fd, 0))
	_ = l.SetupVring(g.vring(0)) // the device notes that it cannot read the ring, for ClearErrors below
	l.WantEnd(dma.ErrFault)
	h.ClearErrors()
}

func TestServeQueueCounter(t *testing.T) {
	testkit.CheckFDs(t)
	h := newHost(t)
	h.back.dev = pairs{h.recorder}
	l := h.connect()
	if _, _, err := l.Negotiate(0, uint64(ProtocolMQ)); err != nil || l.Queues() != 2 {
		t.Errorf("%d queues, %v", l.Queues(), err)
	}
	must(t, l.HangUp())
}

type pairs struct{ *recorder }

func (p pairs) QueueNum() uint64 { return uint64(p.queues / 2) }
