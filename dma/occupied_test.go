package dma

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/testkit"
)

// Invariant: dma: The memory that a space's files occupy is counted by blocks, whoever wrote them:
// holes are free, a file counts once, and a GPU's file does not count.
func TestOccupiedMemory(t *testing.T) {
	s := guestSpace(t)
	const size, written = 1 << 40, 3 << 20
	uncounted := memfd(t, size)
	testkit.OK(t, s.Add(Map{IOVA: 1 << 46, Size: size, FD: uncounted}))
	testkit.Must(unix.Pwrite(uncounted, make([]byte, written), 0))(t)
	testkit.Equal(t, "before it is counted", s.Occupied(), 0)
	s.CountMemory()
	fd := memfd(t, size)
	testkit.OK(t, s.Add(Map{IOVA: 0, Size: size / 2, FD: fd}))
	testkit.OK(t, s.Add(Map{IOVA: size, Size: size / 2, FD: fd, FileOffset: size / 2}))
	testkit.Equal(t, "a hole", s.Occupied(), 0)
	testkit.Must(unix.Pwrite(fd, make([]byte, written), size-written))(t) // the file's owner writes
	testkit.Equal(t, "what its owner has written", s.Occupied(), written)
	in := s.Enter()
	segs := testkit.Must(s.Translate(nil, 1<<30, 4096, Write))(t)
	testkit.OK(t, testkit.Err(NewCopier().Write(segs, make([]byte, 4096)))) // a device writes
	s.Leave(in)
	testkit.Equal(t, "and a NIC", s.Occupied(), written+4096)
	testkit.OK(t, unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, size))
	testkit.Equal(t, "given back", s.Occupied(), 0)

	gpu := memfd(t, 1<<20)
	f := testkit.Must(s.files.Open(gpu, 1<<20))(t)
	defer f.Close()
	f.gpu.Store(0)
	testkit.OK(t, s.Add(Map{IOVA: 1 << 45, Size: 1 << 20, FD: gpu}))
	testkit.Must(unix.Pwrite(gpu, make([]byte, 4096), 0))(t)
	testkit.Equal(t, "of a GPU", s.Occupied(), 0)
}

// A space that counts memory maps at most maxCountedFiles files at a time. Once nothing maps the files, no
// descriptors of them are left (guestSpace).
func TestCountedFilesAreBounded(t *testing.T) {
	s := guestSpace(t)
	s.CountMemory()
	var maps []Map
	for i := range maxCountedFiles {
		maps = append(maps, Map{IOVA: uint64(i) << 20, Size: 4096, FD: memfd(t, 4096)})
	}
	testkit.OK(t, s.Replace(maps))
	more := Map{IOVA: 1 << 40, Size: 4096, FD: memfd(t, 4096)}
	testkit.ErrorIs(t, s.Add(more), unix.ENOSPC)
	testkit.OK(t, s.Remove(0, 4096))
	testkit.OK(t, s.Add(more))
	testkit.Equal(t, "occupied", s.Occupied(), 0)
	other := NewSpace("of another", s.files) // without CountMemory
	defer other.Close()
	testkit.OK(t, other.Add(more))
	testkit.OK(t, s.Close())
	testkit.Must(unix.Pwrite(more.FD, make([]byte, 4096), 0))(t)
	testkit.Equal(t, "of nobody", s.Occupied(), 0)
}

// Invariant: dma: An unmapped file counts with the bytes that it occupied when it was unmapped,
// until it is mapped again or another peer uses the space: its owner may keep it.
func TestUnmappedMemoryIsCounted(t *testing.T) {
	s := guestSpace(t)
	s.CountMemory()
	add := func(fd int) {
		t.Helper()
		testkit.OK(t, s.Add(Map{Size: 1 << 20, FD: fd}))
	}
	first := memfd(t, 1<<20)
	add(first)
	testkit.Must(unix.Pwrite(first, make([]byte, 8192), 0))(t)
	testkit.OK(t, s.Remove(0, 1<<20))
	testkit.Equal(t, "unmapped", s.Occupied(), 8192)
	second := memfd(t, 1<<20)
	add(second)
	testkit.Must(unix.Pwrite(second, make([]byte, 4096), 0))(t)
	testkit.Equal(t, "one of two is mapped", s.Occupied(), 8192+4096)
	testkit.OK(t, s.Replace([]Map{{IOVA: 0, Size: 4096, FD: first}, {IOVA: 4096, Size: 4096, FD: second}}))
	testkit.Equal(t, "both are mapped", s.Occupied(), 8192+4096)
	testkit.OK(t, s.RemoveRange(0, 8192))
	testkit.Equal(t, "both are unmapped", s.Occupied(), 8192+4096)
	s.CountMemory()
	testkit.Equal(t, "of another peer", s.Occupied(), 0)
	for range maxSpaceFiles + 1 { // one file more than s.left has room for
		fd := testkit.Must(unix.MemfdCreate("one of many", unix.MFD_CLOEXEC))(t)
		testkit.OK(t, unix.Ftruncate(fd, 1<<20))
		testkit.Must(unix.Pwrite(fd, []byte{1}, 0))(t)
		add(fd)
		testkit.OK(t, errors.Join(unix.Close(fd), s.Remove(0, 1<<20)))
	}
	testkit.Equal(t, "files", len(s.left), maxSpaceFiles)
	testkit.Equal(t, "of more than it knows", s.Occupied(), 4096*(maxSpaceFiles+1))
}
