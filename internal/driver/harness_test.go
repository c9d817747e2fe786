package driver

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func errOf(results ...any) error {
	err, _ := results[len(results)-1].(error)
	return err
}

func checkErr(t testing.TB, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
}

func mapped(t testing.TB, fd int, size uint64) []byte {
	t.Helper()
	b := testkit.Must(unix.Mmap(fd, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED))(t)
	t.Cleanup(func() { unix.Munmap(b) })
	return b
}

type testGPU struct {
	fd  int
	mem []byte

	mu    sync.Mutex
	free  []uint64
	taken int
}

const testGPUSize = 4 << 20

func newTestGPU(t testing.TB, pages int) *testGPU {
	t.Helper()
	fd := int(testkit.Memfd(t, testGPUSize).Fd())
	g := &testGPU{fd: fd, mem: mapped(t, fd, testGPUSize)}
	for i := range pages {
		g.free = append(g.free, testGPUSize-uint64(i+1)*PageSize)
	}
	return g
}

func (g *testGPU) TakePages(queue int, dst []uint64) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := copy(dst, g.free)
	g.free = g.free[n:]
	g.taken += n
	return n
}

func (g *testGPU) ReturnPages(queue int, offs []uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.free = append(g.free, offs...)
	g.taken -= len(offs)
}

func (g *testGPU) out() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.taken
}

func (g *testGPU) whole(t testing.TB) {
	t.Helper()
	testkit.Equal(t, "pages that were not given back", g.out(), 0)
}

type testReceiver struct {
	gpu  *testGPU
	keep bool

	mu          sync.Mutex
	cond        *sync.Cond
	frames      []gotFrame
	cookies     []uint64
	completions int
	wakes       int
	each        func(f *RxFrame) // called with each frame, on the polling goroutine; set under mu
}

type gotFrame struct {
	RxFrame
	whole []byte
}

func newTestReceiver(g *testGPU) *testReceiver {
	r := &testReceiver{gpu: g}
	r.cond = sync.NewCond(&r.mu)
	return r
}

func (r *testReceiver) Receive(frames []RxFrame) {
	for i := range frames {
		f := gotFrame{RxFrame: frames[i], whole: bytes.Clone(frames[i].Header)}
		f.Header, f.Payload = bytes.Clone(f.Header), slices.Clone(f.Payload)
		for _, p := range f.Payload {
			f.whole = append(f.whole, r.gpu.mem[p.Off:p.Off+uint64(p.Len)]...)
			if !r.keep {
				r.gpu.ReturnPages(f.Queue, []uint64{p.Off})
			}
		}
		var each func(*RxFrame)
		r.locked(func() { each = r.each })
		if each != nil {
			each(&frames[i])
		}
		r.locked(func() { r.frames = append(r.frames, f) })
	}
	r.cond.Broadcast()
}

func (r *testReceiver) Completed(queue int, cookies []uint64) {
	r.locked(func() { r.cookies, r.completions = append(r.cookies, cookies...), r.completions+1 })
	r.cond.Broadcast()
}

func (r *testReceiver) Wake() {
	r.locked(func() { r.wakes++ })
	r.cond.Broadcast()
}

func (r *testReceiver) wait(ok func() bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for !ok() {
		r.cond.Wait()
	}
}

func (r *testReceiver) waitFrames(n int) (f []gotFrame) {
	r.wait(func() bool { return len(r.frames) >= n })
	r.locked(func() { f, r.frames = r.frames, nil })
	return f
}

type rig struct {
	dev *testDevice
	nic *NIC
	rcv *testReceiver
	gpu *testGPU

	gone bool // Close may fail: the backend is gone
}

type rigOptions struct {
	pairs  int
	pages  int
	offer  func(f uint64) uint64
	driver func(o *FrontendOptions)
}

func newRig(t testing.TB, o rigOptions) *rig {
	t.Helper()
	r, err := attach(t, o)
	testkit.OK(t, err)
	n, g := r.nic, r.gpu
	t.Cleanup(func() {
		if err := n.Close(); err != nil && !r.gone {
			t.Errorf("Close: %v", err)
		}
		if !r.rcv.keep {
			g.whole(t)
		}
	})
	testkit.OK(t, n.Start(r.rcv))
	return r
}

// attach starts a driver, without a Receiver, on a test device. The caller closes the NIC.
func attach(t testing.TB, o rigOptions) (*rig, error) {
	t.Helper()
	testkit.CheckFDs(t)
	g := newTestGPU(t, max(o.pages, 1))
	d := newTestDevice(t, max(1, o.pairs), dma.NewFiles())
	if o.offer != nil {
		d.offer = o.offer(d.offer)
	}
	a, b := testkit.SocketPair(t)
	ended := d.serve(b)
	t.Cleanup(func() { <-ended })
	fo := FrontendOptions{Conn: a, MAC: net.HardwareAddr{2, 0, 0, 0, 0, 1},
		GPUs: []FrontendGPU{{ID: 3, FD: g.fd, Size: testGPUSize}}}
	if o.driver != nil {
		o.driver(&fo)
	}
	n, err := Attach(fo)
	return &rig{dev: d, nic: n, rcv: newTestReceiver(g), gpu: g}, err
}

func newBoundRig(t testing.TB, o rigOptions) *rig {
	t.Helper()
	o.pairs = 2
	r := newRig(t, o)
	r.bind(t)
	return r
}

func (r *rig) bind(t testing.TB) {
	t.Helper()
	testkit.OK(t, r.nic.BindQueue(1, 3, r.gpu))
	r.steer(1)
}

func (r *rig) steer(queue int) { r.dev.do(func() { r.dev.steer = func([]byte) int { return queue } }) }

func (r *testReceiver) locked(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
}

func (r *rig) send(t testing.TB, queue int, frames ...TxFrame) {
	t.Helper()
	for len(frames) > 0 {
		r.rcv.mu.Lock()
		tells := r.rcv.completions
		r.rcv.mu.Unlock()
		n, err := r.nic.Transmit(queue, frames)
		if err != nil {
			t.Fatalf("Transmit: %v", err)
		}
		if frames = frames[n:]; len(frames) > 0 {
			r.rcv.wait(func() bool { return r.rcv.completions > tells })
		}
	}
}

func tcpHeader(n int) []byte {
	h := make([]byte, 54)
	copy(h, []byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0})
	ip := h[14:]
	ip[0], ip[8], ip[9] = 0x45, 64, 6
	binary.BigEndian.PutUint16(ip[2:], uint16(40+n))
	copy(ip[12:], []byte{10, 0, 0, 2, 10, 0, 0, 1})
	tcp := ip[20:]
	binary.BigEndian.PutUint16(tcp[0:], 1000)
	binary.BigEndian.PutUint16(tcp[2:], 2000)
	tcp[12], tcp[13] = 5<<4, 0x10
	return h
}

func pattern(b []byte, seed int) []byte {
	for i := range b {
		b[i] = byte(i*7 + i>>8 + seed*13)
	}
	return b
}
