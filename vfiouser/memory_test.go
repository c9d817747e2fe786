package vfiouser_test

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/peer"
	"vnic.dev/vnic/internal/peer/peertest"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/vfiotest"
	"vnic.dev/vnic/vfiouser"
)

func TestMapAndUnmap(t *testing.T) {
	h, l := serving(t)
	m := memory(t, guestSize)

	// Guest RAM as QEMU maps it: adjacent pieces of one file, one of them read-only.
	must(t, l.MapRange(0, 0xa0000, m.FD(), 0, true))
	must(t, l.MapRange(0xc0000, 0x10000, m.FD(), 0xc0000, false))
	must(t, l.MapRange(0xa0000, 0x20000, m.FD(), 0xa0000, true))
	h.WantCalls("MemoryChanged 1", "MemoryChanged 2", "MemoryChanged 3")
	must(t, h.SetByteAt(0x9ffff, 1))
	must(t, h.SetByteAt(0xa0000, 2))
	if b := m.Bytes(); b[0x9ffff] != 1 || b[0xa0000] != 2 {
		t.Errorf("bytes %d and %d", b[0x9ffff], b[0xa0000])
	}
	m.Bytes()[0xc0000] = 3
	h.wantByte(0xc0000, 3)
	peertest.WantError(t, "write to read only memory", h.SetByteAt(0xc0000, 1), dma.ErrAccess)

	want(t, l.MapRange(0x9f000, 0x1000, m.FD(), 0, true), unix.EEXIST)
	want(t, l.MapRange(0x9f000, 0x1000, -1, 0, true), unix.EEXIST)
	h.WantCalls()

	must(t, l.Unmap(0xa0000, 0x20000))
	h.WantCalls("Unmapping 0xa0000+0x20000", "MemoryChanged 2")
	h.wantNoByte(0xa0000, dma.ErrUnmapped)
	must(t, l.HangUp())
	h.WantCalls("Disconnected")
}

// An IOMMU maps pages that the device may only write (DMA_FROM_DEVICE).
func TestMapWithoutRead(t *testing.T) {
	h, l := serving(t)
	m := memory(t, 4096)
	_, err := l.Request(vfiouser.CmdDMAMap, dmaMap(2, 0, guestIOVA, 4096), 0, m.FD())
	must(t, err)
	must(t, h.SetByteAt(guestIOVA, 9))
	if m.Bytes()[0] != 9 {
		t.Error("not written")
	}
}

// QEMU maps ROMs without a descriptor (docs/specs/gve.md, 9); another client may send a ROM's descriptor that is not
// open for writing. The device gets no access to such ranges.
func TestMapWithoutAccess(t *testing.T) {
	h, l := serving(t)
	path := filepath.Join(t.TempDir(), "rom")
	must(t, os.WriteFile(path, make([]byte, 8192), 0o600))
	rom, err := os.Open(path)
	must(t, err)
	defer rom.Close()
	must(t, l.MapRange(0xfffc0000, 0x40000, -1, 0, false))
	must(t, l.MapRange(0xc0000, 0x2000, int(rom.Fd()), 0, false))
	must(t, l.MapRange(0x90a0000, 0x1000, -1, 0, true)) // an arm64 guest's stolen time
	if s := h.Logs.String(); strings.Contains(s, "share=on") {
		t.Errorf("log: %s", s)
	}
	must(t, l.MapRange(0, 0x2000, -1, 0, true))
	must(t, l.MapRange(0x2000, 0x2000, -1, 0, true))
	if s := h.Logs.String(); strings.Count(s, "share=on") != 1 {
		t.Errorf("log: %s", s)
	}
	for _, iova := range []uint64{0xfffc0000, 0xc0000, 0x90a0000, 0, 0x2000} {
		h.wantNoByte(iova, dma.ErrAccess)
	}
	want(t, l.MapRange(0x1000_0000, 0x2000, int(rom.Fd()), 0, true), unix.EINVAL) // writable memory of a read-only file
	must(t, l.Unmap(0xfffc0000, 0x40000))
	must(t, l.Unmap(0xc0000, 0x2000))
	h.works(l, guestIOVA)
}

// Invariant: vfiouser: An unmap that removes mappings is answered after the device was called and
// every worker has left; one that would cut a mapping is refused.
func TestUnmapOfSeveral(t *testing.T) {
	h, l := serving(t)
	m := memory(t, guestSize)
	const top = 1<<64 - 4096
	for _, iova := range []uint64{0x1000, 0x3000, 0x5000, top} {
		must(t, l.MapRange(iova, 0x1000, m.FD(), 0, true))
	}
	h.Take()
	for _, c := range []struct{ iova, size uint64 }{{0x1000, 0x2800}, {0x1800, 0x1000}, {0x1800, 0x100}, {0x800, 0x1000},
		{top, 4095}} {
		want(t, l.Unmap(c.iova, c.size), unix.EINVAL) // cuts one
	}
	must(t, l.Unmap(0x2000, 0x1000)) // nothing is mapped there
	must(t, l.Unmap(1<<47, 1<<47))
	want(t, l.Unmap(0x1000, 0), unix.EINVAL)
	want(t, l.Unmap(top, 8192), unix.EINVAL)
	h.WantCalls()
	must(t, l.Unmap(0, 0x4000))
	if calls := h.Take(); len(calls) != 3 || calls[2] != "MemoryChanged 2" {
		t.Errorf("calls: %q", calls)
	}
	must(t, l.Unmap(top, 4096))
	h.WantCalls("Unmapping 0xfffffffffffff000+0x1000", "MemoryChanged 1")

	_, err := l.Request(vfiouser.CmdDMAUnmap, dmaUnmap(2, 0x1000, 0x1000), 24)
	want(t, err, unix.EINVAL)
	must(t, l.UnmapAll())
	h.WantCalls("Unmapping 0x5000+0x1000", "MemoryChanged 0")
	must(t, l.UnmapAll())
	h.WantCalls()
}

func (l *link) unmap(all bool, iova, size uint64) error {
	if all {
		return l.UnmapAll()
	}
	return l.Unmap(iova, size)
}

// unmapWaits starts to unmap while a worker is inside the space, and waits until waiting returns true. If the unmap has
// ended by then, the test fails.
func (l *link) unmapWaits(t *testing.T, all bool, iova, size uint64, waiting func() bool) (unmapped chan error) {
	t.Helper()
	unmapped = make(chan error, 1)
	go func() { unmapped <- l.unmap(all, iova, size) }()
	for !waiting() {
		runtime.Gosched()
	}
	select {
	case err := <-unmapped:
		t.Fatalf("unmapped under a worker: %v", err)
	default:
	}
	return unmapped
}

// Invariant: vfiouser: An unmap that removes mappings is answered after the device was called and
// every worker has left; one that would cut a mapping is refused.
func TestUnmapWaitsForWorkers(t *testing.T) {
	testkit.CheckFDs(t)
	for _, all := range []bool{false, true} {
		h := newHost(t)
		called := make(chan struct{})
		h.OnCall(func(method string) {
			if method == "Unmapping" {
				close(called)
			}
		})
		l := h.connect()
		m := memory(t, 4096)
		must(t, l.Map(guestIOVA, m))

		token := h.Space.Enter()
		segs, err := h.Space.Translate(nil, guestIOVA, 1, dma.Write)
		must(t, err)
		unmapped := l.unmapWaits(t, all, guestIOVA, 4096, func() bool {
			<-called
			return len(h.Space.Regions()) == 0 // workers that enter now do not find the range
		})
		_, err = dma.NewCopier().Write(segs, []byte{42}) // still mapped for a worker that was inside
		must(t, err)
		h.Space.Leave(token)
		must(t, <-unmapped)
		if m.Bytes()[0] != 42 || h.Files.Len() != 0 {
			t.Errorf("byte %d, %d files", m.Bytes()[0], h.Files.Len())
		}
		must(t, l.HangUp())
	}
}

// Invariant: vfiouser: Truncated memory ends its connection only.
func TestTruncatedMemoryEndsTheConnection(t *testing.T) {
	h, l := serving(t)
	m := memory(t, 8192)
	must(t, l.Map(guestIOVA, m))
	must(t, unix.Ftruncate(m.FD(), 0))
	result := make(chan error, 1)
	dma.Go(func() { result <- h.SetByteAt(guestIOVA, 1) })
	var fault *dma.FaultError
	if err := <-result; !errors.As(err, &fault) {
		t.Errorf("write to truncated memory: %v", err)
	}
	if err := l.Wait(); !errors.As(err, &fault) {
		t.Errorf("Serve: %v", err)
	}
	l.Close()
}

// Invariant: vfiouser: 65,535 maps hold less than 64 MiB, and a message about one makes at most 16 KiB of
// garbage.
func TestMostMaps(t *testing.T) {
	testkit.Slow(t)
	const (
		most = dma.MaxRegions
		held = 64 << 20
		each = 16 << 10 // most bytes of garbage for one message, the client's included
		all  = 32 << 20 // most bytes of garbage for one message that removes all
	)
	testkit.CheckFDs(t)
	h := newHost(t)
	device := &counting{}
	h.server = vfiouser.NewServer(device, h.Space, nil)
	l := h.connect()
	must(t, l.Conn().SetDeadline(time.Time{}))
	m := memory(t, guestSize)
	iova := func(i uint64) uint64 { return i * 7919 % most << 13 }
	mapOne := func(i uint64) error { return l.MapRange(iova(i), 4096, m.FD(), i%256<<12, true) }
	var stats [6]runtime.MemStats
	read := func(i int) {
		runtime.GC()
		runtime.ReadMemStats(&stats[i])
	}
	read(0)
	for i := range uint64(most) {
		must(t, mapOne(i))
	}
	read(1)
	want(t, l.MapRange(1<<50, 4096, m.FD(), 0, true), unix.ENOSPC)
	for i := range uint64(1000) {
		must(t, l.Unmap(iova(i), 4096))
		must(t, mapOne(i))
	}
	read(2)
	for i := range uint64(1000) { // nothing is mapped there
		must(t, l.Unmap(1<<50+i<<20, 1<<20))
	}
	read(3)
	must(t, l.Unmap(0, 1<<47))
	read(4)
	if n := len(h.Space.Regions()); n != 0 || device.unmapping != most+1000 || device.changed != most+2001 {
		t.Errorf("%d regions are left; the device was told of %d that go, and %d changes", n, device.unmapping,
			device.changed)
	}
	made := func(i, messages int) uint64 {
		return (stats[i].TotalAlloc - stats[i-1].TotalAlloc) / uint64(messages)
	}
	for _, c := range []struct {
		what     string
		i, count int
		most     uint64
	}{{"map", 1, most, each}, {"unmap and map, of all", 2, 2000, each}, {"unmap of nothing", 3, 1000, each},
		{"unmap of all", 4, 1, all}} {
		if got := made(c.i, c.count); got > c.most {
			t.Errorf("%s: %d bytes are made for a message, more than %d", c.what, got, c.most)
		}
		t.Logf("%s: %d bytes", c.what, made(c.i, c.count))
	}
	if got := int64(stats[1].HeapAlloc) - int64(stats[0].HeapAlloc); got > held {
		t.Errorf("%d maps hold %d bytes", most, got)
	} else {
		t.Logf("held: %d bytes", got)
	}
	must(t, l.HangUp())
	h.server = vfiouser.NewServer(h.recorder, h.Space, nil)
	h.servesAnother()
}

type counting struct {
	quiet
	unmapping, changed int
}

func (d *counting) Unmapping(uint64, uint64) { d.unmapping++ }
func (d *counting) MemoryChanged()           { d.changed++ }

func TestManyMaps(t *testing.T) {
	testkit.Slow(t)
	h, l := serving(t)
	m := memory(t, guestSize)
	n := uint64(3000)
	for i := range n {
		must(t, l.MapRange(i<<13, 4096, m.FD(), i%256<<12, true))
	}
	for i := range n / 2 {
		must(t, l.Unmap(i<<13, 4096))
	}
	h.works(l, 1<<40)
}

// Invariant: vfiouser: An unmap that removes mappings is answered after the device was called and
// every worker has left; one that would cut a mapping is refused.
func TestMapAndUnmapUnderTraffic(t *testing.T) {
	h, l := serving(t)
	done := make(chan struct{})
	var wg sync.WaitGroup
	var written atomic.Uint64
	for w := range uint64(2) {
		wg.Add(1)
		dma.Go(func() {
			defer wg.Done()
			for i := uint64(0); ; i++ {
				select {
				case <-done:
					return
				default:
				}
				switch err := h.SetByteAt(guestIOVA+w*4096+i%4096, byte(i)); {
				case err == nil:
					written.Add(1)
				case !errors.Is(err, dma.ErrUnmapped):
					t.Errorf("write: %v", err)
					return
				}
			}
		})
	}
	for range 25 {
		m, err := vfiotest.NewMemory(8192) // another file each time: a mapping of the old one would be wrong
		must(t, err)
		must(t, l.Map(guestIOVA, m))
		for n := written.Load(); written.Load() == n; {
			runtime.Gosched()
		}
		must(t, l.Unmap(guestIOVA, 8192))
		if n := h.Files.Len(); n != 0 {
			t.Fatalf("%d files are mapped", n)
		}
		m.Close()
	}
	close(done)
	wg.Wait()
}

// An unmap waits at most once for the workers inside the space.
func TestUnmapOfSeveralWaitsOnce(t *testing.T) {
	testkit.CheckFDs(t)
	for _, all := range []bool{false, true} {
		h := newHost(t)
		l := h.connect()
		m := memory(t, guestSize)
		fill := func() {
			for i := range uint64(200) {
				must(t, l.MapRange(i<<13, 4096, m.FD(), 0, true))
			}
		}
		fill()
		must(t, l.unmap(all, 0, 1<<40))
		if n := h.Space.Waits(); n != 0 || len(h.Space.Regions()) != 0 {
			t.Errorf("waited %d times without a worker; %d regions are left", n, len(h.Space.Regions()))
		}
		fill()
		token := h.Space.Enter()
		unmapped := l.unmapWaits(t, all, 0, 1<<40, func() bool { return h.Space.Waits() > 0 })
		h.Space.Leave(token)
		must(t, <-unmapped)
		if n := h.Space.Waits(); n != 1 || len(h.Space.Regions()) != 0 {
			t.Errorf("waited %d times for one worker; %d regions are left", n, len(h.Space.Regions()))
		}
		must(t, l.HangUp())
	}
}

// Invariant: vfiouser: Memory that the client does not share is recorded, named once, and not used.
func TestMapOfPrivateMemory(t *testing.T) {
	h, l := serving(t)
	mapped := func(fd, flags int) (mem []byte) {
		mem, err := unix.Mmap(fd, 0, guestSize, unix.PROT_READ|unix.PROT_WRITE, flags)
		must(t, err)
		return mem
	}
	const line = "memory of the guest is not shared"
	fd := int(testkit.Memfd(t, guestSize).Fd())
	private := mapped(fd, unix.MAP_PRIVATE)
	for i := uint64(0); i < 100 && !t.Failed(); i++ { // page by page, as with an IOMMU
		must(t, l.MapRange(guestIOVA+i<<12, 4096, fd, i<<12, true))
		h.wantNoByte(guestIOVA+i<<12, dma.ErrNotShared)
	}
	if s := h.Logs.String(); strings.Count(s, line) != 1 || !strings.Contains(s, "level=ERROR") ||
		!strings.Contains(s, `address=0x40000000 size=0x1000 file="/memfd:TestMapOfPrivateMemory`) {
		t.Errorf("log: %s", s)
	}
	for range 2 * peer.MaxRefusalLogs { // the client may map any number of files
		more := int(testkit.Memfd(t, guestSize).Fd())
		mem := mapped(more, unix.MAP_PRIVATE)
		must(t, l.MapRange(1<<40, guestSize, more, 0, true))
		must(t, l.Unmap(1<<40, guestSize))
		must(t, unix.Munmap(mem))
	}
	testkit.Equal(t, "lines", strings.Count(h.Logs.String(), line), peer.MaxRefusalLogs)

	must(t, l.UnmapAll())
	shared := mapped(fd, unix.MAP_SHARED)
	shared[0] = 7
	must(t, l.MapRange(guestIOVA, guestSize, fd, 0, true))
	h.wantByte(guestIOVA, 7)
	must(t, l.UnmapAll())
	must(t, errors.Join(unix.Munmap(private), unix.Munmap(shared)))
}
