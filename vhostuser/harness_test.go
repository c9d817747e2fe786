package vhostuser

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/peer/peertest"
	"vnic.dev/vnic/internal/scm"
	"vnic.dev/vnic/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// recorder is a Device that records most of its calls, and reports wrong ones.
type recorder struct {
	*peertest.Rig
	queues int
	offer  ProtocolFeatures

	mu      sync.Mutex
	live    map[int]Vring
	enabled map[int]bool
	status  uint8
	config  [24]byte
	base    uint32       // result of StopQueue
	first   map[int]byte // first byte of each queue's descriptor table at StartQueue
}

const (
	testFeatures = FeatureVersion1 | FeatureIndirect | FeatureEventIdx | 1<<5 | 1<<15
	allProtocol  = SupportedProtocol
)

func newRecorder(t testing.TB) *recorder {
	return &recorder{Rig: peertest.NewRig(t), queues: 4, offer: allProtocol, live: map[int]Vring{},
		enabled: map[int]bool{}, first: map[int]byte{}}
}

func (d *recorder) Features() uint64         { return testFeatures }
func (d *recorder) ProtocolFeatures() uint64 { return uint64(d.offer) }
func (d *recorder) MaxQueues() int           { return d.queues }

func (d *recorder) SetFeatures(f uint64) error { return d.Note("SetFeatures", " %#x", f) }
func (d *recorder) MTU(mtu uint16) error       { return d.Note("MTU", " %d", mtu) }

func (d *recorder) Status() uint8 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.status
}

func (d *recorder) SetStatus(s uint8) error {
	err := d.Note("SetStatus", " %#x", s)
	d.mu.Lock()
	defer d.mu.Unlock()
	if s == 0 && len(d.live) > 0 {
		d.Errorf("reset with live queues")
	}
	d.status = s
	return err
}

func (d *recorder) GetConfig(off uint32, b []byte) error {
	return d.configAt(off, b, func(c []byte) { copy(b, c) })
}

func (d *recorder) SetConfig(off uint32, b []byte) error {
	return d.configAt(off, b, func(c []byte) { copy(c, b) })
}

func (d *recorder) configAt(off uint32, b []byte, use func([]byte)) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if int64(off)+int64(len(b)) > int64(len(d.config)) {
		return errors.New("beyond the configuration space")
	}
	use(d.config[off:])
	return nil
}

func (d *recorder) StartQueue(v Vring) error {
	err := d.Note("StartQueue", " %d size %d at %#x %#x %#x base %d running %t", v.Index, v.Size, v.Desc, v.Avail, v.Used,
		v.Base, v.Running)
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, ok := d.live[v.Index]; ok {
		d.Errorf("queue %d started twice", v.Index)
	}
	if err != nil {
		closeVring(v)
		return err
	}
	d.live[v.Index] = v
	if b, err := d.ByteAt(v.Desc); err != nil {
		d.Errorf("queue %d: descriptor table: %v", v.Index, err)
	} else {
		d.first[v.Index] = b
	}
	return nil
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
	err := d.Note(what, " %d %t", i, fd >= 0)
	d.mu.Lock()
	defer d.mu.Unlock()
	v, ok := d.live[i]
	if !ok {
		d.Errorf("%s on queue %d, which is not started", what, i)
	}
	scm.Close(*field(&v))
	*field(&v) = fd
	d.live[i] = v
	return err
}

func (d *recorder) EnableQueue(i int, on bool) error {
	err := d.Note("EnableQueue", " %d %t", i, on)
	d.mu.Lock()
	defer d.mu.Unlock()
	if i < 0 || i >= d.queues || d.enabled[i] == on {
		d.Errorf("EnableQueue %d %t", i, on)
	}
	if err == nil {
		d.enabled[i] = on
	}
	return err
}

func (d *recorder) StopQueue(i int) (uint32, error) {
	err := d.Note("StopQueue", " %d", i)
	d.mu.Lock()
	defer d.mu.Unlock()
	v, ok := d.live[i]
	if !ok {
		d.Errorf("queue %d stopped twice", i)
	}
	closeVring(v)
	delete(d.live, i)
	return d.base, err
}

func (d *recorder) Reset() error {
	if d.liveQueues() > 0 {
		d.Errorf("reset with live queues")
	}
	return d.Note("Reset", "")
}

func (d *recorder) MemoryChanged() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i, v := range d.live {
		if _, err := d.ByteAt(v.Used); err != nil {
			d.Errorf("queue %d lives without memory: %v", i, err)
		}
	}
	return d.Note("MemoryChanged", " %d", len(d.Space.Regions()))
}

func (d *recorder) Disconnected() {
	_ = d.Note("Disconnected", "")
	d.mu.Lock()
	defer d.mu.Unlock()
	for i, on := range d.enabled {
		if on && d.Fails("EnableQueue") == nil {
			d.Errorf("queue %d still enabled", i)
		}
	}
	if len(d.live) > 0 {
		d.Errorf("disconnected with live queues")
	}
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

func (d *recorder) SendRARP(mac [6]byte) error { return d.Note("SendRARP", " %x", mac) }

// host is a Backend with its device and memory.
type host struct {
	*recorder
	t    testing.TB
	back *Backend
}

func newHost(t testing.TB) *host {
	t.Helper()
	d := newRecorder(t)
	t.Cleanup(func() { testkit.Equal(t, "queues that are live", d.liveQueues(), 0) })
	return &host{recorder: d, t: t, back: NewBackend(d, d.Space, d.Log())}
}

// serving returns a host, a guest, and a new connection. At the end of the test the host must serve another one.
func serving(t *testing.T) (*host, *guest, *link) {
	t.Helper()
	testkit.CheckFDs(t)
	h := newHost(t)
	t.Cleanup(h.servesAnother)
	return h, newGuest(t), h.connect()
}

// link is a connection to a host.
type link struct {
	*Frontend
	*peertest.Served
	sock *net.UnixConn
}

func (h *host) connect() *link {
	h.t.Helper()
	a, b := testkit.SocketPair(h.t)
	f := NewFrontend(a)
	f.SetTimeout(10 * time.Second) // long: the timeout ends only a test that fails
	return &link{f, peertest.Serve(h.t, func(ctx context.Context) error { return h.back.Serve(ctx, b) }, f.Close), a}
}

func (l *link) negotiate(t testing.TB, protocol ProtocolFeatures) {
	t.Helper()
	_, _, err := l.Negotiate(testFeatures, uint64(protocol))
	must(t, err)
}

func (l *link) wantBase(t testing.TB, ring int, base uint32) {
	t.Helper()
	got, err := l.GetVringBase(ring)
	must(t, err)
	testkit.Equal(t, fmt.Sprintf("base of ring %d", ring), got, base)
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
	for off := int64(0); off < guestSize; off += 4096 { // page n starts with byte n
		_, err := unix.Pwrite(g.fd, []byte{byte(off / 4096)}, off)
		must(t, err)
	}
	return g
}

func memfd(t testing.TB, size int64) int {
	t.Helper()
	return int(testkit.Memfd(t, size).Fd())
}

func eventfd(t testing.TB) int {
	t.Helper()
	fd := testkit.Must(unix.Eventfd(0, unix.EFD_CLOEXEC))(t)
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

func (g *guest) vring(i int) VringSetup {
	page := func(n int) uint64 { return userBase + uint64(3*i+n)*4096 }
	return VringSetup{Index: i, Size: 128, Desc: page(1), Avail: page(2), Used: page(3), Kick: eventfd(g.t),
		Call: eventfd(g.t)}
}

func must(t testing.TB, err error) {
	t.Helper()
	testkit.OK(t, err)
}

func (g *guest) start(l *link, n int) {
	g.t.Helper()
	l.negotiate(g.t, allProtocol)
	must(g.t, l.AddMemory(g.fd, 0, userBase, guestSize, 0))
	for i := range n {
		must(g.t, l.SetEnable(i, true))
		must(g.t, l.SetupVring(g.vring(i)))
	}
}

// servesAnother checks that a host serves a new connection.
func (h *host) servesAnother() {
	h.t.Helper()
	g := newGuest(h.t)
	l := h.connect()
	g.start(l, 2)
	h.works(l)
	must(h.t, l.HangUp())
}

// works checks that a connection on which start has started two queues works; then it stops queue 1.
func (h *host) works(l *link) {
	h.t.Helper()
	h.mu.Lock()
	if h.first[0] != 1 || h.first[1] != 4 || len(h.live) != 2 {
		h.t.Errorf("device has read %v at the start of its rings, %d are live", h.first, len(h.live))
	}
	h.mu.Unlock()
	h.answerBase(77)
	if base, err := l.GetVringBase(1); err != nil || base != 77 {
		h.t.Errorf("GET_VRING_BASE: %d, %v", base, err)
	}
}
