package driver

import (
	"bytes"
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/splitter"
	"vnic.dev/vnic/vhostuser"
)

var payloads = []int{0, 1, 2, 3, 7, 8, 63, 64, 65, 1447, 1448, 1449, 4095, 4096, 4097, 8191, 8192, 8193, 20000, 40000,
	65000}

func TestPayloadGoesToGPUPages(t *testing.T) {
	for _, c := range []struct {
		name   string
		offer  func(uint64) uint64
		driver func(*FrontendOptions)
	}{
		{name: "four pages a chain"},
		{name: "one page a chain", driver: func(o *FrontendOptions) { o.PagesPerChain = 1 }},
		{name: "sixteen pages a chain", driver: func(o *FrontendOptions) { o.PagesPerChain = 16 }},
		{name: "no indirect descriptors", offer: func(f uint64) uint64 { return f &^ vhostuser.FeatureIndirect }},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newBoundRig(t, rigOptions{pages: 400, offer: c.offer, driver: c.driver})
			for i, n := range payloads {
				payload := pattern(make([]byte, n), i)
				hdr := tcpHeader(n)
				r.send(t, 1, TxFrame{Header: hdr, Linear: payload})
				f := r.rcv.waitFrames(1)[0]
				if !f.Split || f.Queue != 1 || f.PayloadLen != n || !bytes.Equal(f.Header, hdr) ||
					!bytes.Equal(f.whole, append(hdr, payload...)) {
					t.Fatalf("payload of %d: got %d+%d bytes, split %v", n, len(f.Header), f.PayloadLen, f.Split)
				}
				for _, p := range f.Payload {
					if p.GPU != 3 || p.Off%PageSize != 0 || p.Len > PageSize || p.Off < testGPUSize/2 {
						t.Errorf("range %+v", p)
					}
				}
			}
			testkit.OK(t, r.nic.UnbindQueue(1))
			r.gpu.whole(t)
		})
	}
}

func TestGPUToGPU(t *testing.T) {
	r := newBoundRig(t, rigOptions{pages: 100})
	pattern(r.gpu.mem[:1<<20], 1)
	for _, ranges := range [][]Range{
		{{3, 0, 1}},
		{{3, 1, 1447}, {3, 9000, 1}},
		{{3, 4095, 2}, {3, 4097, 8191}, {3, 100, 3}},
		{{3, 0, 65000}},
	} {
		var want []byte
		for _, p := range ranges {
			want = append(want, r.gpu.mem[p.Off:p.Off+uint64(p.Len)]...)
		}
		hdr := tcpHeader(len(want))
		r.send(t, 0, TxFrame{Header: hdr, Device: ranges, Cookie: 7})
		if f := r.rcv.waitFrames(1)[0]; !bytes.Equal(f.whole, append(hdr, want...)) {
			t.Errorf("%v: %d bytes differ from what was sent", ranges, len(f.whole))
		}
	}
	r.rcv.wait(func() bool { return len(r.rcv.cookies) == 4 })
	if s := r.nic.Stats(); s.Tx[0].Payload != s.Rx[1].Payload || s.Rx[1].Frames != 4 {
		t.Errorf("stats: %+v", s)
	}
}

func TestQueueIsBoundAgain(t *testing.T) {
	r := newRig(t, rigOptions{pairs: 2, pages: 600})
	for i := range 5 {
		r.steer(0)
		r.bind(t)
		for k := range 300 {
			r.send(t, 0, TxFrame{Header: tcpHeader(5000), Linear: pattern(make([]byte, 5000), i+k)})
		}
		for _, f := range r.rcv.waitFrames(300) {
			testkit.Equal(t, "payload", f.PayloadLen, 5000)
		}
		testkit.OK(t, r.nic.UnbindQueue(1))
		r.gpu.whole(t)
	}
}

func TestDeviceWithoutQueueResetReturnsChains(t *testing.T) {
	r := newRig(t, rigOptions{pairs: 2, pages: 600})
	r.nic.offloads.QueueReset = false
	r.dev.do(func() { r.dev.flush = true })
	for i := range 3 {
		r.bind(t)
		r.send(t, 0, TxFrame{Header: tcpHeader(5000), Linear: pattern(make([]byte, 5000), i)})
		r.rcv.waitFrames(1)
		testkit.OK(t, r.nic.UnbindQueue(1))
		r.gpu.whole(t)
	}
}

func TestFewPagesAreEnough(t *testing.T) {
	r := newRig(t, rigOptions{pairs: 2, pages: 3})
	r.rcv.keep = true
	r.bind(t)
	for i := range 50 {
		payload := pattern(make([]byte, 8193), i)
		r.send(t, 0, TxFrame{Header: tcpHeader(len(payload)), Linear: payload})
		f := r.rcv.waitFrames(1)[0]
		if !bytes.Equal(f.whole[54:], payload) {
			t.Fatalf("frame %d differs", i)
		}
		for _, p := range f.Payload {
			r.gpu.ReturnPages(1, []uint64{p.Off})
		}
		r.nic.Refill(1)
	}
	if s := r.nic.Stats(); s.Rx[1].Full == 0 {
		t.Errorf("never out of pages: %+v", s.Rx[1])
	}
}

// Invariant: driver: An unsplit frame on a bound queue is dropped, and the queue is set up again.
func TestUnsplitFrameIsDroppedAndQueueSetUpAgain(t *testing.T) {
	generations := make(chan uint32, 10)
	r := newRig(t, rigOptions{pairs: 2, pages: 400, driver: func(o *FrontendOptions) {
		o.OnGeneration = func(g uint32) { generations <- g }
	}})
	testkit.OK(t, r.nic.BindQueue(1, 3, r.gpu))
	r.dev.loseState()
	r.steer(1)
	for _, n := range []int{0, 100, 3000, 30000} {
		r.send(t, 0, TxFrame{Header: tcpHeader(n), Linear: make([]byte, n)})
	}
	testkit.Equal(t, "generation", <-generations, 2)
	r.rcv.wait(func() bool { return r.rcv.wakes > 0 })
	payload := pattern(make([]byte, 3000), 1)
	// The four frames above may still arrive, and frames that are not split are dropped.
	for arrived := false; !arrived; {
		r.send(t, 0, TxFrame{Header: tcpHeader(3000), Linear: payload})
		r.rcv.mu.Lock()
		for _, f := range r.rcv.frames {
			early := bytes.Equal(f.whole[54:], make([]byte, f.PayloadLen))
			arrived = arrived || bytes.Equal(f.whole[54:], payload)
			if !f.Split && f.PayloadLen > 0 || !early && !bytes.Equal(f.whole[54:], payload) {
				t.Errorf("got %+v", f.RxFrame)
			}
		}
		r.rcv.frames = nil
		r.rcv.mu.Unlock()
	}
	if s := r.nic.Stats(); s.Rx[1].Unsplit == 0 {
		t.Errorf("no unsplit frame was counted: %+v", s.Rx[1])
	}
}

func TestSetUpThatFailsIsRepeated(t *testing.T) {
	generations := make(chan uint32, 10)
	r := newRig(t, rigOptions{pairs: 2, pages: 400, driver: func(o *FrontendOptions) {
		o.OnGeneration = func(g uint32) { generations <- g }
	}})
	r.bind(t)
	r.dev.loseState()
	r.dev.do(func() { r.dev.refuse = 2 })
	testkit.Must(r.nic.Control().Hello(t.Context()))(t)
	testkit.Equal(t, "generation", <-generations, 2)
	r.rcv.wait(func() bool { return r.rcv.wakes > 0 })
	r.dev.do(func() { testkit.Equal(t, "refusals left", r.dev.refuse, 0) })
}

func TestBindErrors(t *testing.T) {
	r := newRig(t, rigOptions{pairs: 3, pages: 100, driver: func(o *FrontendOptions) { o.HostQueues = 2 }})
	testkit.OK(t, r.nic.BindQueue(2, 3, r.gpu))
	for _, c := range []struct {
		name       string
		queue, gpu int
		want       error
	}{
		{"host queue", 1, 3, unix.EBUSY},
		{"no such queue", 3, 3, unix.EINVAL},
		{"negative queue", -1, 3, unix.EINVAL},
		{"bound queue", 2, 3, unix.EBUSY},
	} {
		if err := r.nic.BindQueue(c.queue, c.gpu, r.gpu); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
	testkit.OK(t, r.nic.UnbindQueue(2))
	checkErr(t, "no such GPU", r.nic.BindQueue(2, 4, r.gpu), unix.ENODEV)
	checkErr(t, "unbinding twice", r.nic.UnbindQueue(2), unix.EINVAL)
}

type badSource struct{ pages int }

func (b badSource) TakePages(queue int, dst []uint64) int {
	dst[0] = 4097
	return b.pages
}
func (b badSource) ReturnPages(int, []uint64) {}

func TestBadPageSourceIsRefused(t *testing.T) {
	r := newRig(t, rigOptions{pairs: 2, pages: 100})
	for _, pages := range []int{1, -1, 100} {
		if err := r.nic.BindQueue(1, 3, badSource{pages}); err == nil {
			t.Fatalf("%d bad pages: no error", pages)
		}
	}
	if err := r.nic.BindQueue(1, 3, r.gpu); err != nil {
		t.Fatal(err)
	}
	r.steer(1)
	r.send(t, 0, TxFrame{Header: tcpHeader(10), Linear: make([]byte, 10)})
	r.rcv.waitFrames(1)
}

func TestOffloadsReachReceiver(t *testing.T) {
	r := newRig(t, rigOptions{pairs: 2, pages: 100})
	testkit.OK(t, r.nic.BindQueue(1, 3, r.gpu))
	for queue := range 2 {
		r.steer(queue)
		r.send(t, 0, TxFrame{Header: tcpHeader(30000), Linear: make([]byte, 30000), NeedsCsum: true, CsumStart: 34,
			CsumOffset: 16,
			GSOType:    splitter.GSOTCPv4, GSOSize: 1448})
		f := r.rcv.waitFrames(1)[0]
		if f.Queue != queue || !f.CsumGood || f.GSOType != splitter.GSOTCPv4 || f.GSOSize != 1448 {
			t.Errorf("queue %d: got %+v", queue, f.RxFrame)
		}
	}
}
