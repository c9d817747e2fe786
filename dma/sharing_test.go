package dma

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/testkit"
)

// mapAs maps the first page of a file with these flags, and returns a function that unmaps it.
func mapAs(t *testing.T, fd, flags int) (unmap func()) {
	t.Helper()
	mem, err := unix.Mmap(fd, 0, page, unix.PROT_READ|unix.PROT_WRITE, flags)
	testkit.OK(t, err)
	return func() { testkit.OK(t, unix.Munmap(mem)) }
}

func sharingHere(t *testing.T, fd int) Sharing {
	t.Helper()
	id := testkit.Must(FileIDOf(fd))(t)
	return SharingOf(os.Getpid(), id.dev, id.ino)
}

// A process that has a private and a shared mapping of a file shares it (SharingOn).
func TestSharingOfAFile(t *testing.T) {
	fd, other := memfd(t, page), memfd(t, page)
	defer mapAs(t, other, unix.MAP_PRIVATE)()
	testkit.Equal(t, "not mapped", sharingHere(t, fd), SharingUnknown)
	private := mapAs(t, fd, unix.MAP_PRIVATE)
	testkit.Equal(t, "private", sharingHere(t, fd), SharingOff)
	shared := mapAs(t, fd, unix.MAP_SHARED)
	testkit.Equal(t, "both", sharingHere(t, fd), SharingOn)
	private()
	testkit.Equal(t, "shared", sharingHere(t, fd), SharingOn)
	shared()
	id := testkit.Must(FileIDOf(other))(t)
	for _, pid := range []int{0, -1, 1<<31 - 1} {
		testkit.Equal(t, "of no process", SharingOf(pid, id.dev, id.ino), SharingUnknown)
	}
}

// fakePeer answers a space's checks of mappings, and counts them.
type fakePeer struct {
	answer   Sharing
	asked    int
	reported []string
}

func newFakePeer(s *Space) *fakePeer {
	p := &fakePeer{}
	s.SetSharing(func(pid int, dev, ino uint64) Sharing {
		p.asked++
		return p.answer
	})
	s.SetPeer(1234, func(m Map, file string) { p.reported = append(p.reported, file) })
	return p
}

// For two regions of a private file, SetPeer's function is called once.
//
// Invariant: dma: Memory that a space finds to be mapped privately by its peer is neither read nor
// written.
func TestPrivateMemoryIsNotAccessible(t *testing.T) {
	leakFree(t)
	files := NewFiles()
	s := NewSpace("private", files)
	p := newFakePeer(s)
	p.answer = SharingOff
	fd := memfd(t, 4*page)
	testkit.OK(t, s.Add(Map{IOVA: page, Size: page, FD: fd}))
	testkit.OK(t, s.Add(Map{IOVA: 2 * page, Size: page, FD: fd, FileOffset: page}))
	testkit.Equal(t, "files", files.Len(), 0)
	token := s.Enter()
	tr := NewTranslator(s)
	var b [1]byte
	for what, err := range map[string]error{
		"read":       testkit.Err(s.Translate(nil, page, 1, Read)),
		"write":      testkit.Err(s.Translate(nil, 2*page, 1, Write)),
		"translator": testkit.Err(tr.TranslateMax(nil, 1, page, 1, Read)),
		"table":      s.ReadAt(b[:], page),
		"ring":       testkit.Err(s.Pin(page, 16)),
	} {
		if !errors.Is(err, ErrNotShared) || !errors.Is(err, ErrAccess) || !strings.Contains(err.Error(), "share=on") {
			t.Errorf("%s: %v", what, err)
		}
	}
	s.Leave(token)
	for _, r := range s.Regions() {
		if !r.NoAccess || !r.NotShared || r.File != nil {
			t.Errorf("%+v", r)
		}
	}
	if len(p.reported) != 1 || !strings.HasPrefix(p.reported[0], "/memfd:") {
		t.Errorf("told of %q", p.reported)
	}
	p.answer = SharingOn // the peer has mapped the file anew, shared
	testkit.OK(t, s.Remove(page, page))
	testkit.OK(t, s.Add(Map{IOVA: page, Size: page, FD: fd}))
	token = s.Enter()
	testkit.NoError(t, testkit.Err(s.Translate(nil, page, 1, Read)))
	s.Leave(token)
	testkit.OK(t, s.Close())
}

// A peer's mappings are checked, at a limited rate, at Replace and when Add maps a file that the space does not map. A
// private file is checked anew only after a private region was removed.
func TestMappingsAreLookedAtOncePerFile(t *testing.T) {
	leakFree(t)
	s := NewSpace("looks", NewFiles())
	p := newFakePeer(s)
	fd := memfd(t, 2*page)
	region := func(i uint64) Map { return Map{IOVA: i * page, Size: page, FD: fd} }
	for n, answer := range []Sharing{SharingOff, SharingOn} {
		p.answer = answer
		for i := range uint64(1000) {
			testkit.OK(t, s.Add(region(i)))
		}
		testkit.Equal(t, "looks for a file", p.asked, n+1)
		testkit.OK(t, s.RemoveRange(0, 1000*page))
	}
	p.asked = 0
	testkit.OK(t, s.Add(region(1)))
	testkit.Equal(t, "looks for a file that comes again", p.asked, 1)
	testkit.OK(t, s.Replace([]Map{region(1), {IOVA: page << 20, Size: page, FD: memfd(t, page)}}))
	testkit.Equal(t, "looks for a table of two more", p.asked, 3)
	testkit.OK(t, s.Replace(nil))
	began := time.Now()
	for range 2000 { // as a guest does that maps one page in its IOMMU again and again
		testkit.OK(t, s.Add(region(1)))
		testkit.OK(t, s.Remove(page, page))
	}
	if most := sharingBurst + int(time.Since(began)*sharingRate/time.Second); p.asked > most {
		t.Errorf("looked %d times, more than %d", p.asked, most)
	}
	p.answer = SharingOff
	testkit.OK(t, s.Add(region(1)))
	if r := s.Regions(); len(r) != 1 || p.asked <= sharingBurst && r[0].NotShared {
		t.Errorf("when it may not look: %+v", r)
	}
	p.asked = 0
	s.SetPeer(0, nil)
	testkit.OK(t, s.Add(region(2)))
	testkit.Equal(t, "looks at no process", p.asked, 0)
	testkit.OK(t, s.Close())
}
