package driver

import (
	"bytes"
	"encoding/binary"
	"net"
	"os"
	"slices"
	"sync"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/testkit"
)

func TestMain(m *testing.M) {
	r, w, err := os.Pipe() // the poller's own descriptors are there from now on
	if err != nil {
		panic(err)
	}
	r.Close()
	w.Close()
	goleak.VerifyTestMain(m)
}

func socketpair(t testing.TB) (a, b *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	testkit.OK(t, err)
	var conns [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "socketpair")
		c, err := net.FileConn(f)
		f.Close()
		testkit.OK(t, err)
		conns[i] = c.(*net.UnixConn)
	}
	return conns[0], conns[1]
}

// testGPU is a GPU's memory, mapped by the test, with a page pool.
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
	fd, err := unix.MemfdCreate("test-gpu", unix.MFD_CLOEXEC)
	if err == nil {
		err = unix.Ftruncate(fd, testGPUSize)
	}
	testkit.OK(t, err)
	mem, err := unix.Mmap(fd, 0, testGPUSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	testkit.OK(t, err)
	g := &testGPU{fd: fd, mem: mem}
	for i := range pages {
		g.free = append(g.free, testGPUSize-uint64(i+1)*PageSize) // the upper half; tests send from the lower
	}
	t.Cleanup(func() { unix.Munmap(mem); unix.Close(fd) })
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

// testReceiver keeps copies of what it gets.
type testReceiver struct {
	gpu  *testGPU
	keep bool // pages

	mu      sync.Mutex
	cond    *sync.Cond
	frames  []gotFrame
	cookies []uint64
	tells   int // Completed calls
	wakes   int
	each    func(f *RxFrame) // called on the polling goroutine; set under mu
}

type gotFrame struct {
	RxFrame
	whole []byte // header and payload
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
		r.mu.Lock()
		each := r.each
		r.mu.Unlock()
		if each != nil {
			each(&frames[i])
		}
		r.mu.Lock()
		r.frames = append(r.frames, f)
		r.mu.Unlock()
	}
	r.cond.Broadcast()
}

func (r *testReceiver) Completed(queue int, cookies []uint64) {
	r.mu.Lock()
	r.cookies = append(r.cookies, cookies...)
	r.tells++
	r.mu.Unlock()
	r.cond.Broadcast()
}

func (r *testReceiver) Wake() {
	r.mu.Lock()
	r.wakes++
	r.mu.Unlock()
	r.cond.Broadcast()
}

// wait waits until ok, which is called under mu.
func (r *testReceiver) wait(ok func() bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for !ok() {
		r.cond.Wait()
	}
}

// waitFrames waits for n frames in all and takes them.
func (r *testReceiver) waitFrames(n int) []gotFrame {
	r.wait(func() bool { return len(r.frames) >= n })
	r.mu.Lock()
	defer r.mu.Unlock()
	f := r.frames
	r.frames = nil
	return f
}

// rig is a driver on a test device.
type rig struct {
	dev *testDevice
	nic *NIC
	rcv *testReceiver
	gpu *testGPU

	gone bool // the backend is: Close fails
}

type rigOptions struct {
	pairs  int
	pages  int
	offer  func(f uint64) uint64
	driver func(o *FrontendOptions)
}

func newRig(t testing.TB, o rigOptions) *rig {
	t.Helper()
	testkit.CheckFDs(t)
	files := dma.NewFiles()
	o.pairs = max(1, o.pairs)
	g := newTestGPU(t, max(o.pages, 1))
	d := newTestDevice(t, o.pairs, files)
	if o.offer != nil {
		d.offer = o.offer(d.offer)
	}
	a, b := socketpair(t)
	ended := d.serve(b)
	fo := FrontendOptions{Conn: a, MAC: net.HardwareAddr{2, 0, 0, 0, 0, 1},
		GPUs: []FrontendGPU{{ID: 3, FD: g.fd, Size: testGPUSize}}}
	if o.driver != nil {
		o.driver(&fo)
	}
	n, err := Attach(fo)
	t.Cleanup(func() { <-ended }) // after Close
	testkit.OK(t, err)
	r := &rig{dev: d, nic: n, rcv: newTestReceiver(g), gpu: g}
	t.Cleanup(func() {
		if err := n.Close(); err != nil && !r.gone {
			t.Errorf("Close: %v", err)
		}
		if out := g.out(); out != 0 && !r.rcv.keep {
			t.Errorf("%d pages were not given back", out)
		}
	})
	testkit.OK(t, n.Start(r.rcv))
	return r
}

// send transmits all frames, waiting for room.
func (r *rig) send(t testing.TB, queue int, frames ...TxFrame) {
	t.Helper()
	for len(frames) > 0 {
		r.rcv.mu.Lock()
		tells := r.rcv.tells
		r.rcv.mu.Unlock()
		n, err := r.nic.Transmit(queue, frames)
		if err != nil {
			t.Fatalf("Transmit: %v", err)
		}
		if frames = frames[n:]; len(frames) > 0 {
			r.rcv.wait(func() bool { return r.rcv.tells > tells })
		}
	}
}

// tcpHeader makes Ethernet, IPv4 and TCP headers for n bytes of payload.
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

// pattern fills b with bytes that tell where they belong.
func pattern(b []byte, seed int) []byte {
	for i := range b {
		b[i] = byte(i*7 + i>>8 + seed*13)
	}
	return b
}
