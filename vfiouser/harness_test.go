package vfiouser_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/peer/peertest"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/vfiotest"
	"vnic.dev/vnic/vfiouser"
	"vnic.dev/vnic/vfiouser/pci"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func must(t testing.TB, err error) {
	t.Helper()
	testkit.OK(t, err)
}

func want(t testing.TB, err error, errno unix.Errno) {
	t.Helper()
	peertest.WantError(t, "request", err, errno)
}

// The test device has registers in BAR 0, MSI-X in BAR 1, doorbells in BAR 2 (write only) and a ROM (read only).
// guestIOVA and guestSize are an address for memory of the guest, and a size in bytes.
const (
	regsSize  = 0x1000
	msixSize  = 0x1000
	doorSize  = 0x100
	romSize   = 0x800
	vectors   = 24 // more than one message can carry eventfds
	guestIOVA = 0x4000_0000
	guestSize = 1 << 20
)

// recorder is a Device that records calls of most of its methods; some wrong calls are errors of the test.
type recorder struct {
	*peertest.Rig
	config *pci.Config
	info   vfiouser.Info
	regs   [regsSize]byte

	mu  sync.Mutex
	fds map[[2]int]int // eventfds by index and vector
}

func newRecorder(t testing.TB) *recorder {
	t.Helper()
	config, err := pci.New(pci.Options{Vendor: 0x1af4, Device: 0x10f0, Class: 0xff0000, Revision: 1,
		Express: pci.Link{Generation: 3, Lanes: 16},
		BARs:    [6]pci.BAR{{Size: regsSize}, {Size: msixSize}, {Size: doorSize}},
		MSIX:    pci.MSIX{Vectors: vectors, BAR: 1, PBAOff: 0x800}})
	must(t, err)
	d := &recorder{Rig: peertest.NewRig(t), config: config, fds: map[[2]int]int{}}
	d.info = vfiouser.Info{Reset: true, Regions: []vfiouser.Region{
		{Size: regsSize, Read: true, Write: true}, {Size: msixSize, Read: true, Write: true}, {Size: doorSize, Write: true},
		{}, {}, {},
		{Size: romSize, Read: true}, {Size: config.Size(), Read: true, Write: true}},
		IRQs: []vfiouser.IRQ{{}, {}, {Count: vectors}}}
	return d
}

func (d *recorder) Info() vfiouser.Info { return d.info }

func (d *recorder) inside(region int, off uint64, b []byte, write bool) {
	r := d.info.Regions[region]
	if off > r.Size || uint64(len(b)) > r.Size-off || len(b) == 0 || write && !r.Write || !write && !r.Read {
		d.Errorf("access to region %d [%#x, +%#x)", region, off, len(b))
	}
}

func (d *recorder) ReadRegion(region int, off uint64, b []byte) error {
	d.inside(region, off, b, false)
	if err := d.Note("Read", " %d %#x+%d", region, off, len(b)); err != nil {
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
	if err := d.Note("Write", " %d %#x % x", region, off, b); err != nil {
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
		d.Errorf("SetIRQ %d %d", index, vector)
	}
	err := d.Note("SetIRQ", " %d %d %t", index, vector, fd >= 0)
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

// drop closes a vector's eventfd. The caller holds mu.
func (d *recorder) drop(index, vector int) {
	k := [2]int{index, vector}
	if fd, ok := d.fds[k]; ok {
		unix.Close(fd)
		delete(d.fds, k)
	}
}

func (d *recorder) DisableIRQs(index int) error {
	err := d.Note("DisableIRQs", " %d", index)
	d.mu.Lock()
	defer d.mu.Unlock()
	for v := range vectors {
		d.drop(index, v)
	}
	return err
}

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
	return d.Note("Reset", "")
}

func (d *recorder) Unmapping(iova, size uint64) {
	_ = d.Note("Unmapping", " %#x+%#x", iova, size)
	for _, r := range d.Space.Regions() {
		if r.IOVA == iova && r.Size == size {
			return
		}
	}
	d.Errorf("Unmapping %#x+%#x, which is not mapped", iova, size)
}

func (d *recorder) MemoryChanged() { _ = d.Note("MemoryChanged", " %d", len(d.Space.Regions())) }

func (d *recorder) Disconnected() {
	_ = d.Note("Disconnected", "")
	d.mu.Lock()
	defer d.mu.Unlock()
	for k := range d.fds {
		d.drop(k[0], k[1])
	}
}

// host is a Server with its device and memory.
type host struct {
	*recorder
	t      testing.TB
	server *vfiouser.Server
}

func newHost(t testing.TB) *host {
	t.Helper()
	d := newRecorder(t)
	t.Cleanup(func() { testkit.Equal(t, "eventfds that are left", d.irqs(), 0) })
	return &host{recorder: d, t: t, server: vfiouser.NewServer(d, d.Space, d.Log())}
}

// serving returns a host and a connection to it. At the end of the test the host must serve another client, and no
// descriptors may be left.
func serving(t testing.TB) (*host, *link) {
	t.Helper()
	testkit.CheckFDs(t)
	h := newHost(t)
	t.Cleanup(h.servesAnother)
	return h, h.connect()
}

// link is a connection to a host.
type link struct {
	*vfiotest.Client
	*peertest.Served
}

// dial connects and sends nothing.
func (h *host) dial() *link {
	h.t.Helper()
	a, b := testkit.SocketPair(h.t)
	c := vfiotest.New(a)
	must(h.t, c.SetTimeout(20*time.Second)) // reached only if a test fails
	serve := func(ctx context.Context) error { return h.server.Serve(ctx, b) }
	return &link{c, peertest.Serve(h.t, serve, c.Close)}
}

// connect connects and negotiates.
func (h *host) connect() *link {
	h.t.Helper()
	l := h.dial()
	_, err := l.Version(0, 0, `{"capabilities":{"max_msg_fds":16,"write_multiple":true}}`)
	must(h.t, err)
	return l
}

func (h *host) wantByte(iova uint64, want byte) {
	h.t.Helper()
	got, err := h.ByteAt(iova)
	must(h.t, err)
	testkit.Equal(h.t, fmt.Sprintf("byte at %#x", iova), got, want)
}

// wantNoByte fails the test unless reading the byte at iova gives the error want.
func (h *host) wantNoByte(iova uint64, want error) {
	h.t.Helper()
	_, err := h.ByteAt(iova)
	peertest.WantError(h.t, fmt.Sprintf("byte at %#x", iova), err, want)
}

func (h *host) wantNotLost() {
	h.t.Helper()
	if s := h.Logs.String(); strings.Contains(s, lost) {
		h.t.Errorf("log: %s", s)
	}
}

func (l *link) post(t testing.TB, h vfiouser.Header, body []byte, fds ...int) {
	t.Helper()
	must(t, l.Send(vfiotest.Message{Header: h, Body: body, FDs: fds}))
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

// works checks that a connection is served. No memory may be mapped in the two pages at iova.
func (h *host) works(l *link, iova uint64) {
	h.t.Helper()
	must(h.t, l.Write(0, 8, []byte{1, 2, 3, 4}))
	var b [4]byte
	must(h.t, l.Read(0, 8, b[:]))
	testkit.Equal(h.t, "registers", b, [4]byte{1, 2, 3, 4})
	m := memory(h.t, 8192)
	must(h.t, l.Map(iova, m))
	must(h.t, h.SetByteAt(iova+4097, 7))
	testkit.Equal(h.t, "the device's byte in the guest's memory", m.Bytes()[4097], 7)
	e := event(h.t)
	must(h.t, l.SetIRQ(vfiouser.IRQMSIX, 3, e))
	h.fire(h.t, 3)
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience) // the test's own context may have ended
	defer cancel()
	if n, err := e.Wait(ctx); err != nil || n != 1 {
		h.t.Errorf("interrupt: %d, %v", n, err)
	}
	must(h.t, l.DisableIRQs(vfiouser.IRQMSIX))
	must(h.t, l.Reset())
	must(h.t, l.Unmap(iova, 8192))
}

func (h *host) servesAnother() {
	h.t.Helper()
	h.OnCall(nil)
	l := h.connect()
	h.works(l, guestIOVA)
	must(h.t, l.HangUp())
}
