package vfiouser_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/vfiouser"
	"vnic.dev/vnic/vfiouser/pci"
	"vnic.dev/vnic/vfiouser/vfiotest"
)

func TestMain(m *testing.M) {
	a, b, err := vfiotest.Pair() // the poller's own descriptors are there from now on
	if err != nil {
		panic(err)
	}
	a.Close()
	b.Close()
	goleak.VerifyTestMain(m)
}

// must fails the test on an error.
func must(t testing.TB, err error) {
	t.Helper()
	testkit.OK(t, err)
}

// want fails the test if err is not the errno.
func want(t testing.TB, err error, errno unix.Errno) {
	t.Helper()
	if !errors.Is(err, errno) {
		t.Errorf("error %v, not %v", err, errno)
	}
}

// The test device: registers in BAR 0, MSI-X in BAR 1, doorbells in BAR 2 (write only), a ROM (read only).
const (
	regsSize  = 0x1000
	msixSize  = 0x1000
	doorSize  = 0x100
	romSize   = 0x800
	vectors   = 24 // more than fit in one message
	guestIOVA = 0x4000_0000
	guestSize = 1 << 20
)

// recorder is a Device that writes down what it is told, and complains about what no Server may do.
type recorder struct {
	space  *dma.Space
	config *pci.Config

	mu    sync.Mutex
	info  vfiouser.Info
	regs  [regsSize]byte
	calls []string
	wrong []string
	fds   map[[2]int]int   // eventfds by index and vector
	fail  map[string]error // by method name
	gone  bool             // Disconnected was called, and nothing since
	hook  func(string)     // called, without the lock, with each call
}

func newRecorder(t testing.TB, space *dma.Space) *recorder {
	t.Helper()
	config, err := pci.New(pci.Options{Vendor: 0x1af4, Device: 0x10f0, Class: 0xff0000, Revision: 1, Express: true,
		BARs: [6]pci.BAR{{Size: regsSize}, {Size: msixSize}, {Size: doorSize}},
		MSIX: pci.MSIX{Vectors: vectors, BAR: 1, PBAOff: 0x800}})
	must(t, err)
	d := &recorder{space: space, config: config, fds: map[[2]int]int{}, fail: map[string]error{}}
	d.info = vfiouser.Info{Reset: true, Regions: []vfiouser.Region{
		{Size: regsSize, Read: true, Write: true}, {Size: msixSize, Read: true, Write: true}, {Size: doorSize, Write: true},
		{}, {}, {},
		{Size: romSize, Read: true}, {Size: config.Size(), Read: true, Write: true}},
		IRQs: []vfiouser.IRQ{{}, {}, {Count: vectors}}}
	return d
}

// note writes a call down and returns what it is to answer.
func (d *recorder) note(method, format string, args ...any) error {
	d.mu.Lock()
	hook := d.hook
	d.mu.Unlock()
	if hook != nil {
		hook(method)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls = append(d.calls, method+fmt.Sprintf(format, args...))
	d.gone = false
	return d.fail[method]
}

// onCall has f called with the name of each method that is called; nil ends that.
func (d *recorder) onCall(f func(method string)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.hook = f
}

func (d *recorder) complain(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.wrong = append(d.wrong, fmt.Sprintf(format, args...))
}

func (d *recorder) Info() vfiouser.Info { return d.info }

func (d *recorder) inside(region int, off uint64, b []byte, write bool) {
	r := d.info.Regions[region]
	if off > r.Size || uint64(len(b)) > r.Size-off || len(b) == 0 || write && !r.Write || !write && !r.Read {
		d.complain("access to region %d [%#x, +%#x)", region, off, len(b))
	}
}

func (d *recorder) ReadRegion(region int, off uint64, b []byte) error {
	d.inside(region, off, b, false)
	if err := d.note("Read", " %d %#x+%d", region, off, len(b)); err != nil {
		return err
	}
	switch region {
	case vfiouser.RegionConfig:
		return d.config.Read(off, b)
	case vfiouser.RegionBAR0:
		copy(b, d.regs[off:])
	}
	return nil
}

func (d *recorder) WriteRegion(region int, off uint64, b []byte) error {
	d.inside(region, off, b, true)
	if err := d.note("Write", " %d %#x % x", region, off, b); err != nil {
		return err
	}
	switch region {
	case vfiouser.RegionConfig:
		return d.config.Write(off, b)
	case vfiouser.RegionBAR0:
		copy(d.regs[off:], b)
	}
	return nil
}

func (d *recorder) SetIRQ(index, vector, fd int) error {
	if index != vfiouser.IRQMSIX || vector < 0 || vector >= vectors {
		d.complain("SetIRQ %d %d", index, vector)
	}
	err := d.note("SetIRQ", " %d %d %t", index, vector, fd >= 0)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.drop(index, vector)
	if err != nil && fd >= 0 {
		unix.Close(fd)
	} else if fd >= 0 {
		d.fds[[2]int{index, vector}] = fd
	}
	return err
}

// drop closes the eventfd of a vector. Under mu.
func (d *recorder) drop(index, vector int) {
	k := [2]int{index, vector}
	if fd, ok := d.fds[k]; ok {
		unix.Close(fd)
		delete(d.fds, k)
	}
}

func (d *recorder) DisableIRQs(index int) error {
	err := d.note("DisableIRQs", " %d", index)
	d.mu.Lock()
	defer d.mu.Unlock()
	for v := range vectors {
		d.drop(index, v)
	}
	return err
}

// fire signals a vector.
func (d *recorder) fire(t testing.TB, vector int) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	fd, ok := d.fds[[2]int{vfiouser.IRQMSIX, vector}]
	if !ok {
		t.Errorf("vector %d has no eventfd", vector)
		return
	}
	if _, err := unix.Write(fd, []byte{1, 0, 0, 0, 0, 0, 0, 0}); err != nil {
		t.Error(err)
	}
}

func (d *recorder) irqs() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.fds)
}

func (d *recorder) Reset() error {
	d.config.Reset()
	return d.note("Reset", "")
}

func (d *recorder) Unmapping(iova, size uint64) {
	_ = d.note("Unmapping", " %#x+%#x", iova, size)
	for _, r := range d.space.Regions() {
		if r.IOVA == iova && r.Size == size {
			return
		}
	}
	d.complain("Unmapping %#x+%#x, which is not mapped", iova, size)
}

func (d *recorder) MemoryChanged() { _ = d.note("MemoryChanged", " %d", len(d.space.Regions())) }

func (d *recorder) Disconnected() {
	_ = d.note("Disconnected", "")
	d.mu.Lock()
	defer d.mu.Unlock()
	d.gone = true
	for k := range d.fds {
		d.drop(k[0], k[1])
	}
}

// take returns what was called since the last take.
func (d *recorder) take() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	calls := d.calls
	d.calls = nil
	return calls
}

func (d *recorder) failWith(method string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fail[method] = err
}

// wantCalls fails the test if other calls were made since the last take.
func (d *recorder) wantCalls(t testing.TB, calls ...string) {
	t.Helper()
	if got := d.take(); !slices.Equal(got, calls) {
		t.Errorf("calls:\n%s\nwanted:\n%s", strings.Join(got, "\n"), strings.Join(calls, "\n"))
	}
}

// byteAt reads one byte as the device does.
func (d *recorder) byteAt(iova uint64) (byte, error) {
	token := d.space.Enter()
	defer d.space.Leave(token)
	segs, err := d.space.Translate(nil, iova, 1, dma.Read)
	if err != nil {
		return 0, err
	}
	var b [1]byte
	_, err = dma.NewCopier().Read(b[:], segs)
	return b[0], err
}

// write writes one byte as the device does.
func (d *recorder) write(iova uint64, v byte) error {
	token := d.space.Enter()
	defer d.space.Leave(token)
	segs, err := d.space.Translate(nil, iova, 1, dma.Write)
	if err != nil {
		return err
	}
	_, err = dma.NewCopier().Write(segs, []byte{v})
	return err
}

// host is a Server with its device and memory.
type host struct {
	t      testing.TB
	dev    *recorder
	space  *dma.Space
	files  *dma.Files
	server *vfiouser.Server
	logs   *logs
}

// logs keeps log lines.
type logs struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logs) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func newHost(t testing.TB) *host {
	t.Helper()
	files := dma.NewFiles()
	space := dma.NewSpace("test", files)
	dev := newRecorder(t, space)
	out := &logs{}
	h := &host{t: t, dev: dev, space: space, files: files,
		server: vfiouser.NewServer(dev, space, slog.New(slog.NewTextHandler(out, nil))), logs: out}
	t.Cleanup(h.check)
	return h
}

// check fails the test if the device was told anything wrong, or something is left.
func (h *host) check() {
	h.t.Helper()
	h.dev.mu.Lock()
	defer h.dev.mu.Unlock()
	for _, w := range h.dev.wrong {
		h.t.Errorf("device: %s", w)
	}
	if len(h.dev.calls) > 0 && !h.dev.gone {
		h.t.Errorf("device: Disconnected was not the last call: %q", h.dev.calls)
	}
	if n := len(h.dev.fds); n > 0 {
		h.t.Errorf("device: %d eventfds are left", n)
	}
	if r := h.space.Regions(); len(r) > 0 {
		h.t.Errorf("space: %d regions are left", len(r))
	}
	if n := h.files.Len(); n > 0 {
		h.t.Errorf("%d files are mapped", n)
	}
}

// link is a connection to a host.
type link struct {
	*vfiotest.Client
	cancel context.CancelCauseFunc
	result chan error
}

// dial connects and says nothing.
func (h *host) dial() *link {
	h.t.Helper()
	a, b, err := vfiotest.Pair()
	must(h.t, err)
	ctx, cancel := context.WithCancelCause(context.Background())
	l := &link{vfiotest.New(a), cancel, make(chan error, 1)}
	must(h.t, l.SetTimeout(20*time.Second)) // only of a test that fails
	go func() { l.result <- h.server.Serve(ctx, b) }()
	h.t.Cleanup(func() { l.Close(); cancel(nil) })
	return l
}

// connect connects and negotiates.
func (h *host) connect() *link {
	h.t.Helper()
	l := h.dial()
	if _, err := l.Version(0, 0, `{"capabilities":{"max_msg_fds":16,"write_multiple":true}}`); err != nil {
		h.t.Fatal(err)
	}
	return l
}

// hangUp closes the connection and returns Serve's error.
func (l *link) hangUp() error {
	l.Close()
	return l.wait()
}

// wait returns Serve's error.
func (l *link) wait() error {
	err := <-l.result
	l.cancel(nil)
	return err
}

func memory(t testing.TB, size uint64) *vfiotest.Memory {
	t.Helper()
	m, err := vfiotest.NewMemory(size)
	must(t, err)
	t.Cleanup(m.Close)
	return m
}

func event(t testing.TB) *vfiotest.Event {
	t.Helper()
	e, err := vfiotest.NewEvent()
	must(t, err)
	t.Cleanup(e.Close)
	return e
}

// works shows that a connection serves: registers, memory, interrupts, reset. iova is free for a guest's memory.
func (h *host) works(l *link, iova uint64) {
	h.t.Helper()
	must(h.t, l.Write(0, 8, []byte{1, 2, 3, 4}))
	var b [4]byte
	must(h.t, l.Read(0, 8, b[:]))
	if b != [4]byte{1, 2, 3, 4} {
		h.t.Errorf("registers: % x", b)
	}
	m := memory(h.t, 8192)
	must(h.t, l.Map(iova, m))
	must(h.t, h.dev.write(iova+4097, 7))
	if m.Bytes()[4097] != 7 {
		h.t.Error("the device's byte is not in the guest's memory")
	}
	e := event(h.t)
	must(h.t, l.SetIRQ(vfiouser.IRQMSIX, 3, e))
	h.dev.fire(h.t, 3)
	if n, err := e.Wait(h.t.Context()); err != nil || n != 1 {
		h.t.Errorf("interrupt: %d, %v", n, err)
	}
	must(h.t, l.DisableIRQs(vfiouser.IRQMSIX))
	must(h.t, l.Reset())
	must(h.t, l.Unmap(iova, 8192))
}

// friendly shows that a host serves a connection of its own.
func (h *host) friendly() {
	h.t.Helper()
	l := h.connect()
	h.works(l, guestIOVA)
	if err := l.hangUp(); err != nil {
		h.t.Errorf("friendly connection: %v", err)
	}
}
