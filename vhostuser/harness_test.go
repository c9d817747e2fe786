package vhostuser

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/scm"
	"vnic.dev/vnic/internal/testkit"
)

func TestMain(m *testing.M) {
	a, b, err := socketpair() // the poller's own descriptors are there from now on
	if err != nil {
		panic(err)
	}
	a.Close()
	b.Close()
	goleak.VerifyTestMain(m)
}

func socketpair() (a, b *net.UnixConn, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	var conns [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "socketpair")
		c, err := net.FileConn(f)
		f.Close()
		if err != nil {
			return nil, nil, err
		}
		conns[i] = c.(*net.UnixConn)
	}
	return conns[0], conns[1], nil
}

// recorder is a Device that writes down what it is told, and complains about what no Backend may do.
type recorder struct {
	space  *dma.Space
	queues int
	offer  ProtocolFeatures

	mu      sync.Mutex
	calls   []string
	wrong   []string
	live    map[int]Vring
	enabled map[int]bool
	status  uint8
	config  [24]byte
	fail    map[string]error // by method name
	base    uint32           // what StopQueue answers
	gone    bool             // Disconnected was called, and nothing since
	first   map[int]byte     // first byte of the descriptor table at StartQueue, read through the Space
}

const (
	testFeatures = FeatureVersion1 | FeatureIndirect | FeatureEventIdx | 1<<5 | 1<<15
	allProtocol  = SupportedProtocol
)

func newRecorder(space *dma.Space) *recorder {
	return &recorder{space: space, queues: 4, offer: allProtocol, live: map[int]Vring{}, enabled: map[int]bool{},
		fail: map[string]error{}, first: map[int]byte{}}
}

func (d *recorder) note(format string, args ...any) {
	d.calls = append(d.calls, fmt.Sprintf(format, args...))
	d.gone = false
}

func (d *recorder) complain(format string, args ...any) {
	d.wrong = append(d.wrong, fmt.Sprintf(format, args...))
}

func (d *recorder) Features() uint64         { return testFeatures }
func (d *recorder) ProtocolFeatures() uint64 { return uint64(d.offer) }
func (d *recorder) MaxQueues() int           { return d.queues }

func (d *recorder) SetFeatures(f uint64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.note("SetFeatures %#x", f)
	return d.fail["SetFeatures"]
}

func (d *recorder) MTU(mtu uint16) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.note("MTU %d", mtu)
	return d.fail["MTU"]
}

func (d *recorder) Status() uint8 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.status
}

func (d *recorder) SetStatus(s uint8) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.note("SetStatus %#x", s)
	if s == 0 && len(d.live) > 0 {
		d.complain("reset with live queues")
	}
	d.status = s
	return d.fail["SetStatus"]
}

func (d *recorder) GetConfig(off uint32, b []byte) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if int64(off)+int64(len(b)) > int64(len(d.config)) {
		return errors.New("beyond the configuration space")
	}
	copy(b, d.config[off:])
	return nil
}

func (d *recorder) SetConfig(off uint32, b []byte) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if int64(off)+int64(len(b)) > int64(len(d.config)) {
		return errors.New("beyond the configuration space")
	}
	copy(d.config[off:], b)
	return nil
}

func (d *recorder) StartQueue(v Vring) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.note("StartQueue %d size %d at %#x %#x %#x base %d running %t", v.Index, v.Size, v.Desc, v.Avail, v.Used, v.Base,
		v.Running)
	if _, ok := d.live[v.Index]; ok {
		d.complain("queue %d started twice", v.Index)
	}
	if err := d.fail["StartQueue"]; err != nil {
		closeVring(v)
		return err
	}
	d.live[v.Index] = v
	if b, err := d.read(v.Desc); err != nil {
		d.complain("queue %d: descriptor table: %v", v.Index, err)
	} else {
		d.first[v.Index] = b
	}
	return nil
}

// read reads one byte of guest memory.
func (d *recorder) read(iova uint64) (byte, error) {
	tok := d.space.Enter()
	defer d.space.Leave(tok)
	segs, err := d.space.Translate(nil, iova, 1, dma.Read)
	if err != nil {
		return 0, err
	}
	var b [1]byte
	_, err = dma.NewCopier().Read(b[:], segs)
	return b[0], err
}

func closeVring(v Vring) {
	scm.Close(v.Kick)
	scm.Close(v.Call)
	scm.Close(v.Err)
}

func (d *recorder) SetCall(i, fd int) error {
	return d.setFD("SetCall", i, fd, func(v *Vring) *int { return &v.Call })
}

func (d *recorder) SetErr(i, fd int) error {
	return d.setFD("SetErr", i, fd, func(v *Vring) *int { return &v.Err })
}

func (d *recorder) setFD(what string, i, fd int, field func(*Vring) *int) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.note("%s %d %t", what, i, fd >= 0)
	v, ok := d.live[i]
	if !ok {
		d.complain("%s on queue %d, which is not started", what, i)
	}
	scm.Close(*field(&v))
	*field(&v) = fd
	d.live[i] = v
	return d.fail[what]
}

func (d *recorder) EnableQueue(i int, on bool) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.note("EnableQueue %d %t", i, on)
	if i < 0 || i >= d.queues || d.enabled[i] == on {
		d.complain("EnableQueue %d %t", i, on)
	}
	if err := d.fail["EnableQueue"]; err != nil {
		return err
	}
	d.enabled[i] = on
	return nil
}

func (d *recorder) StopQueue(i int) (uint32, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.note("StopQueue %d", i)
	v, ok := d.live[i]
	if !ok {
		d.complain("queue %d stopped twice", i)
	}
	closeVring(v)
	delete(d.live, i)
	return d.base, d.fail["StopQueue"]
}

func (d *recorder) Reset() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.note("Reset")
	if len(d.live) > 0 {
		d.complain("reset with live queues")
	}
	return d.fail["Reset"]
}

func (d *recorder) MemoryChanged() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.note("MemoryChanged %d", len(d.space.Regions()))
	for i, v := range d.live {
		if _, err := d.read(v.Used); err != nil {
			d.complain("queue %d lives without memory: %v", i, err)
		}
	}
	return d.fail["MemoryChanged"]
}

func (d *recorder) Disconnected() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.note("Disconnected")
	d.gone = true
	for i, on := range d.enabled {
		if on && d.fail["EnableQueue"] == nil {
			d.complain("queue %d still enabled", i)
		}
	}
	if len(d.live) > 0 {
		d.complain("disconnected with live queues")
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

func (d *recorder) liveQueues() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.live)
}

func (d *recorder) answerBase(base uint32) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.base = base
}

func (d *recorder) failWith(method string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fail[method] = err
}

// SendRARP implements Announcer.
func (d *recorder) SendRARP(mac [6]byte) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.note("SendRARP %x", mac)
	return nil
}

// host is a Backend with its device and memory.
type host struct {
	t     testing.TB
	dev   *recorder
	space *dma.Space
	files *dma.Files
	back  *Backend
}

func newHost(t testing.TB) *host {
	t.Helper()
	files := dma.NewFiles()
	space := dma.NewSpace("test", files)
	dev := newRecorder(space)
	h := &host{t: t, dev: dev, space: space, files: files, back: NewBackend(dev, space, slog.New(slog.DiscardHandler))}
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
	if n := len(h.dev.live); n > 0 {
		h.t.Errorf("device: %d queues live", n)
	}
	if len(h.dev.calls) > 0 && !h.dev.gone {
		h.t.Errorf("device: Disconnected was not the last call: %q", h.dev.calls)
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
	*Frontend
	sock   *net.UnixConn
	cancel context.CancelCauseFunc
	result chan error
}

func (h *host) connect() *link {
	h.t.Helper()
	a, b, err := socketpair()
	testkit.OK(h.t, err)
	ctx, cancel := context.WithCancelCause(context.Background())
	l := &link{NewFrontend(a), a, cancel, make(chan error, 1)}
	l.SetTimeout(10 * time.Second) // only of a test that fails
	go func() { l.result <- h.back.Serve(ctx, b) }()
	h.t.Cleanup(func() { l.Close(); cancel(nil) })
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

// guest is the memory of a frontend.
type guest struct {
	t  testing.TB
	fd int
}

const (
	guestSize = 1 << 20
	userBase  = 0x7f00_0000_0000 // user address of GPA 0
)

func newGuest(t testing.TB) *guest {
	t.Helper()
	g := &guest{t, memfd(t, guestSize)}
	for off := int64(0); off < guestSize; off += 4096 { // page n starts with n
		if _, err := unix.Pwrite(g.fd, []byte{byte(off / 4096)}, off); err != nil {
			t.Fatal(err)
		}
	}
	return g
}

func memfd(t testing.TB, size int64) int {
	t.Helper()
	fd, err := unix.MemfdCreate("guest", unix.MFD_CLOEXEC)
	testkit.OK(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	testkit.OK(t, unix.Ftruncate(fd, size))
	return fd
}

func eventfd(t testing.TB) int {
	t.Helper()
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	testkit.OK(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

// vring is queue i of the guest: its parts lie on pages 3i+1, 3i+2 and 3i+3.
func (g *guest) vring(i int) VringSetup {
	page := func(n int) uint64 { return userBase + uint64(3*i+n)*4096 }
	return VringSetup{Index: i, Size: 128, Desc: page(1), Avail: page(2), Used: page(3), Kick: eventfd(g.t),
		Call: eventfd(g.t)}
}

// must fails the test on an error.
func must(t testing.TB, err error) {
	t.Helper()
	testkit.OK(t, err)
}

// start negotiates everything and starts n queues.
func (g *guest) start(l *link, n int) {
	g.t.Helper()
	if _, _, err := l.Negotiate(testFeatures, uint64(allProtocol)); err != nil {
		g.t.Fatal(err)
	}
	must(g.t, l.AddMemory(g.fd, 0, userBase, guestSize, 0))
	for i := range n {
		must(g.t, l.SetEnable(i, true))
		must(g.t, l.SetupVring(g.vring(i)))
	}
}

// friendly shows that a host serves: a connection of its own, with memory that is read and rings that start and stop.
func (h *host) friendly() {
	h.t.Helper()
	g := newGuest(h.t)
	l := h.connect()
	g.start(l, 2)
	h.works(l)
	if err := l.hangUp(); err != nil {
		h.t.Errorf("friendly connection: %v", err)
	}
}

// works shows that a connection with two started queues works.
func (h *host) works(l *link) {
	h.t.Helper()
	h.dev.mu.Lock()
	if h.dev.first[0] != 1 || h.dev.first[1] != 4 || len(h.dev.live) != 2 {
		h.t.Errorf("device has read %v at the start of its rings, %d are live", h.dev.first, len(h.dev.live))
	}
	h.dev.base = 77
	h.dev.mu.Unlock()
	if base, err := l.GetVringBase(1); err != nil || base != 77 {
		h.t.Errorf("GET_VRING_BASE: %d, %v", base, err)
	}
}
