package nictest

import (
	"log/slog"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/gpumem"
	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/lab/pcie"
	"vnic.dev/vnic/internal/nic"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/wire"
)

// Memory is a guest's memory: RAM, allocated from its start on, and perhaps the memory of a GPU. On an
// error its methods fail the test TB; a fuzz target may replace TB.
type Memory struct {
	testing.TB
	FD      int // descriptor of RAM
	RAM     []byte
	Base    uint64 // guest-physical address of RAM
	Next    uint64 // offset of free RAM
	GPU     *gpumem.GPU
	GPUMem  []byte // the GPU's memory, at guest-physical address GPUBase
	gpuNext uint64
}

const (
	GPUBase = 1 << 40 // guest-physical address of the GPU's memory
	GPUSize = 4 << 20
)

// NewMemory makes RAM of size bytes, in a file that is longer by behind bytes.
func NewMemory(t testing.TB, base uint64, size, behind int) *Memory {
	t.Helper()
	m := &Memory{TB: t, Base: base}
	m.FD = int(testkit.Memfd(t, int64(size+behind)).Fd())
	m.RAM = m.mmap(m.FD, size)
	return m
}

func (m *Memory) mmap(fd, size int) []byte {
	m.Helper()
	b, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	m.OK(err)
	m.Cleanup(func() { _ = unix.Munmap(b) })
	return b
}

// OK fails the test on an error.
func (m *Memory) OK(err error) {
	m.Helper()
	testkit.OK(m, err)
}

// AddGPU makes the guest's GPU.
func (m *Memory) AddGPU(files *dma.Files, id int, p2p bool) nic.GPU {
	m.Helper()
	var err error
	m.GPU, err = gpumem.NewGPU(files, id, GPUSize, gpumem.Options{})
	m.OK(err)
	m.Cleanup(func() { _ = m.GPU.Close() })
	m.GPUMem = m.mmap(m.GPU.FD(), GPUSize)
	path := pcie.Path{}
	if p2p {
		path.Kind = pcie.Bus
	}
	return nic.GPU{GPU: m.GPU, Path: path}
}

// Alloc returns n bytes of RAM, on pages of their own.
func (m *Memory) Alloc(n int) (addr uint64, b []byte) {
	m.Helper()
	base := m.Next
	m.Next += uint64(n+4095) &^ 4095
	if m.Next > uint64(len(m.RAM)) {
		m.Fatal("guest memory is used up")
	}
	return m.Base + base, m.RAM[base:][:n]
}

// Put allocates RAM with a copy of b in it.
func (m *Memory) Put(b []byte) (addr uint64) {
	addr, to := m.Alloc(len(b))
	copy(to, b)
	return addr
}

// PayloadPage returns the address of the next payload buffer in the first half of GPU memory. The first buffer follows
// the last one.
func (m *Memory) PayloadPage() (addr uint64) {
	addr = GPUBase + m.gpuNext
	m.gpuNext = (m.gpuNext + PayloadBuf) % (GPUSize / 2)
	return addr
}

// PutPayload copies a payload to new RAM, or (gpu) to the start of the second half of GPU memory.
func (m *Memory) PutPayload(b []byte, gpu bool) (addr uint64) {
	if !gpu {
		return m.Put(b)
	}
	copy(m.GPUMem[GPUSize/2:], b)
	return GPUBase + GPUSize/2
}

// At returns the memory from an address on, to the end of RAM or of the GPU's memory.
func (m *Memory) At(addr uint64) []byte {
	if m.GPU != nil && addr >= GPUBase {
		return m.GPUMem[addr-GPUBase:]
	}
	return m.RAM[addr-m.Base:]
}

// EventFD makes a non-blocking eventfd for the test.
func EventFD(t testing.TB) int {
	t.Helper()
	fd := testkit.Must(unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK))(t)
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

// Driver is the sending part of a guest's driver, which depends on the device model.
type Driver interface {
	Add(queue int, f *Frame, gpu bool) // adds a frame; gpu: its payload lies in the second half of GPU memory, not in RAM
	Show(queue int)                    // shows the NIC the added frames
	Sent(queue int)                    // waits until the NIC has completed the frames
}

// Sender sends frames through a Driver.
type Sender struct{ Driver }

// Queue implements Guest.
func (s Sender) Queue(q int, fs ...Frame) {
	for i := range fs {
		s.Add(q, &fs[i], false)
	}
	s.Show(q)
}

// Send implements Guest.
func (s Sender) Send(q int, fs ...Frame) {
	s.Queue(q, fs...)
	s.Sent(q)
}

// SendGPU implements Guest.
func (s Sender) SendGPU(q int, f Frame) {
	s.Add(q, &f, true)
	s.Show(q)
	s.Sent(q)
}

// Introduce registers the memory of a guest's GPU, in two halves, and calls Hello.
func Introduce(t testing.TB, g Guest, gpu int) {
	t.Helper()
	for k := range uint64(2) {
		_, err := g.Port().RegisterBuffer(control.Buffer{GPU: uint16(gpu), Off: k * GPUSize / 2, Size: GPUSize / 2})
		must(t, err)
	}
	Hello(g)
}

// Hello sends a frame from which the switch learns a guest's address.
func Hello(g Guest) {
	f := Make(Everyone, g.MAC(), Spec{}) // receivers without buffers drop it
	f.Partial = false
	g.Send(0, f)
}

// Deliver calls Deliver of a guest's port with a frame with n bytes of payload, for TCP port 2000, and returns the
// frame's Verdict.
func Deliver(t testing.TB, to Guest, w *wire.Worker, n int) wire.Verdict {
	t.Helper()
	f := Make(to.MAC(), wire.MAC{2, 9}, Spec{Payload: n})
	pkt := packet(t, w, f.Bytes())
	to.Port().Deliver(w, []*wire.Packet{pkt})
	return pkt.Verdict
}

// DeliverFlow calls Deliver of a guest's port with a batch of count consecutive frames of a flow, with n bytes of
// payload each, and returns their Verdicts.
func DeliverFlow(t testing.TB, to Guest, w *wire.Worker, count, n int) (vs []wire.Verdict) {
	t.Helper()
	var batch []*wire.Packet
	for i := range count {
		f := Make(to.MAC(), wire.MAC{2, 9}, Spec{V6: true, Payload: n, Seq: uint32(i * n)})
		batch = append(batch, packet(t, w, f.complete(t)))
	}
	to.Port().Deliver(w, batch)
	for _, p := range batch {
		vs = append(vs, p.Verdict)
	}
	return vs
}

func packet(t testing.TB, w *wire.Worker, b []byte) *wire.Packet {
	t.Helper()
	segs := []dma.Segment{dma.NewBuffer(b, dma.Host).Segment(0, uint32(len(b)))}
	pkt := new(wire.Packet)
	must(t, nic.ParseFrame(w.Copier, segs, 0, segs[0].Len, make([]byte, nic.MaxHeader), pkt))
	pkt.Prepare()
	return pkt
}

// Everyone is the broadcast address.
var Everyone = wire.MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// Switch makes a switch, and the dma.Files of its guests.
func Switch(t testing.TB) (*dma.Files, *wire.Switch) {
	sw := wire.NewSwitch(slog.New(slog.DiscardHandler))
	t.Cleanup(func() { _ = sw.Close() })
	return dma.NewFiles(), sw
}

// World is a switch with two honest guests (A and B), and the one under test (Bad).
type World[G Guest] struct{ A, B, Bad G }

// NewWorld makes a world: guest makes A, B and Bad, which are guests 0 to 2.
func NewWorld[G Guest](t testing.TB, guest func(files *dma.Files, sw *wire.Switch, i int) G) *World[G] {
	t.Helper()
	files, sw := Switch(t)
	return &World[G]{guest(files, sw, 0), guest(files, sw, 1), guest(files, sw, 2)}
}

// Moves checks that frames from A to B, and from B to A, still arrive.
func (w *World[G]) Moves(t testing.TB) {
	t.Helper()
	for _, p := range [][2]Guest{{w.A, w.B}, {w.B, w.A}} {
		f := Make(p[1].MAC(), p[0].MAC(), Spec{Payload: 3000})
		p[1].Post(0, 1)
		p[0].Send(0, f)
		Arrives(t, p[1], 0, &f)
	}
}

// Arrives receives a frame on queue q of g, checks that it has the bytes of want, and returns it. The NIC may have
// completed the checksum.
func Arrives(t testing.TB, g Guest, q int, want *Frame) (got Frame) {
	t.Helper()
	got = g.Receive(q)
	same(t, &got, want)
	return got
}

// DeadGuestStallsNobody checks that frames to a guest without buffers do not keep a sender's frames to another guest
// from arriving, and that the former arrive again once that guest posts buffers.
func DeadGuestStallsNobody[G Guest](t *testing.T, w *World[G]) {
	send := func(to Guest, n int) Frame { return Make(to.MAC(), w.A.MAC(), Spec{Payload: n}) }
	w.B.Post(0, 8)
	for range 8 {
		w.A.Queue(0, send(w.Bad, 1000), send(w.B, 1000))
	}
	for range 8 {
		w.B.Receive(0)
	}
	w.Moves(t)
	w.A.Sent(0) // waits until A gives up frames for which Bad has no buffers (Sender.Patience)
	w.A.Send(0, send(w.Bad, 10))
	w.Moves(t)
	w.Bad.Post(0, 2) // frames to Bad wait again
	f := send(w.Bad, 20)
	w.A.Send(0, f)
	Arrives(t, w.Bad, 0, &f)
}

// SlowReceiverStallsNobody checks that a sender drops frames to a guest that takes few, and that its frames to another
// guest arrive.
//
// On a loaded machine the sender may have sent to no other receiver for a second, and then no receiver is slow:
// the test tries up to three times.
func SlowReceiverStallsNobody[G Guest](t *testing.T, w *World[G]) {
	const n = 80 // a transmit ring has room for 2*n frames
	frame := func(to Guest, i int) Frame { return Make(to.MAC(), w.A.MAC(), Spec{Payload: 1000, Seq: uint32(i)}) }
	drops := func() [wire.NumDropReasons]uint64 { return w.A.Port().Link().Counters().Drops }
	for tries := 0; tries < 3 && drops()[wire.DropSlowReceiver] == 0; tries++ {
		w.Bad.Post(0, 1) // frames to Bad wait again
		w.B.Post(0, n)
		for i := range n {
			w.A.Queue(0, frame(w.Bad, i), frame(w.B, i))
		}
		for i := range n {
			if i%20 == 19 {
				w.Bad.Post(0, 1)
			}
			f := frame(w.B, i)
			Arrives(t, w.B, 0, &f)
		}
		w.A.Sent(0)
	}
	if d := drops(); d[wire.DropSlowReceiver] == 0 {
		t.Errorf("no drop for a slow receiver: %v", d)
	}
}

// PausesLoseNothing checks that the only receiver of a sender gets all frames although it posts no buffers for 100 ms
// three times.
func PausesLoseNothing[G Guest](t *testing.T, w *World[G]) {
	const n = 60
	_, was := w.A.Port().QueueCounters(0)
	before := w.B.Port().Link().Counters().Busy
	for range 3 {
		for i := range n {
			w.A.Queue(0, Make(w.B.MAC(), w.A.MAC(), Spec{Payload: 1000, Seq: uint32(i)}))
		}
		end := time.Now().Add(100 * time.Millisecond)
		for time.Now().Before(end) {
			runtime.Gosched()
		}
		w.B.Post(0, n)
		for i := range n {
			f := Make(w.B.MAC(), w.A.MAC(), Spec{Payload: 1000, Seq: uint32(i)})
			Arrives(t, w.B, 0, &f)
		}
		w.A.Sent(0)
	}
	if w.B.Port().Link().Counters().Busy == before {
		t.Error("no frame waited")
	}
	_, tx := w.A.Port().QueueCounters(0)
	testkit.Equal(t, "drops", tx.Drops, was.Drops)
}
