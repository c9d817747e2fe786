package dma

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
	"vnic.dev/vnic/internal/testkit"
)

// Invariant: dma: A file is mapped once (a file of hugetlbfs once per space), and one guest cannot
// take the whole address space of the process.
func TestFileIsMappedOnce(t *testing.T) {
	leakFree(t)
	files := NewFiles()
	fd := memfd(t, 64<<10)
	a := testkit.Must(files.Open(fd, 64<<10))(t)
	dup := testkit.Must(unix.Dup(fd))(t)
	b, err := files.Open(dup, 1)
	unix.Close(dup) // the mapping needs no descriptor
	testkit.OK(t, err)
	if a != b || files.Len() != 1 {
		t.Fatalf("two descriptors of one file: %p and %p, %d mapped", a, b, files.Len())
	}
	a.Close()
	r, err := b.Region(0, b.Size())
	testkit.OK(t, err)
	c := NewCopier()
	testkit.OK(t, testkit.Err(c.Write([]Segment{r.Segment(100, 5)}, []byte("hello"))))
	got := make([]byte, 5)
	if _, err := unix.Pread(fd, got, 100); err != nil || string(got) != "hello" {
		t.Fatalf("the file has %q, %v", got, err)
	}
	b.Close()
	if files.Len() != 0 {
		t.Fatal("still mapped after the last Close")
	}
	testkit.ErrorIs(t, testkit.Err(c.Read(got, []Segment{r.Segment(0, 5)})), ErrClosed, "read from a closed file")
}

func TestFileClosedTooOftenPanics(t *testing.T) {
	f := testkit.Must(NewFiles().Open(memfd(t, 4096), 0))(t)
	f.Close()
	defer func() {
		if recover() == nil {
			t.Fatal("no panic")
		}
	}()
	f.Close()
}

func TestOpenRefuses(t *testing.T) {
	leakFree(t)
	dir := t.TempDir()
	open := func(flags int, name string) int {
		fd := testkit.Must(unix.Open(name, flags|unix.O_CLOEXEC, 0o600))(t)
		t.Cleanup(func() { unix.Close(fd) })
		return fd
	}
	var pipe [2]int
	testkit.OK(t, unix.Pipe2(pipe[:], unix.O_CLOEXEC))
	t.Cleanup(func() { unix.Close(pipe[0]); unix.Close(pipe[1]) })
	sealed, err := unix.MemfdCreate("sealed", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	testkit.OK(t, err)
	t.Cleanup(func() { unix.Close(sealed) })
	truncate(t, sealed, 4096)
	testkit.OK(t, testkit.Err(unix.FcntlInt(uintptr(sealed), unix.F_ADD_SEALS, unix.F_SEAL_WRITE)))
	name := filepath.Join(dir, "ro")
	testkit.OK(t, os.WriteFile(name, make([]byte, 4096), 0o600))
	sparse := memfd(t, maxFile+4096)
	for _, c := range []struct {
		name string
		fd   int
		need uint64
	}{
		{"no descriptor", -1, 0},
		{"a number that is not open", 1 << 20, 0},
		{"pipe", pipe[0], 0},
		{"directory", open(unix.O_RDONLY, dir), 0},
		{"device", open(unix.O_RDWR, "/dev/zero"), 0},
		{"read-only", open(unix.O_RDONLY, name), 0},
		{"write-only", open(unix.O_WRONLY, name), 0},
		{"path only", open(unix.O_PATH, name), 0},
		{"empty", memfd(t, 0), 0},
		{"too short", memfd(t, 4096), 4097},
		{"sealed against writing", sealed, 0},
		{"larger than the address space", sparse, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			files := NewFiles()
			if f, err := files.Open(c.fd, c.need); !errors.Is(err, ErrBadFile) || f != nil || files.Len() != 0 {
				t.Fatalf("Open: %v, %v; %d mapped", f, err, files.Len())
			}
			s := NewSpace("guest", files)
			defer s.Close()
			add(t, s, Map{Size: 4096, FD: memfd(t, 4096)})
		})
	}
}

func TestGrownFileKeepsItsSize(t *testing.T) {
	leakFree(t)
	files := NewFiles()
	fd := memfd(t, 4096)
	a := testkit.Must(files.Open(fd, 4096))(t)
	truncate(t, fd, 8192)
	testkit.ErrorIs(t, testkit.Err(files.Open(fd, 8192)), ErrBadFile, "Open of what is not mapped")
	a.Close()
	b, err := files.Open(fd, 8192)
	if err != nil || b.Size() != 8192 {
		t.Fatal(err)
	}
	b.Close()
}

func TestOpenAndCloseFromManyGoroutines(t *testing.T) {
	leakFree(t)
	files := NewFiles()
	fds := []int{memfd(t, 4096), memfd(t, 8192)}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for i := range 200 {
				f, err := files.Open(fds[i%2], 4096)
				if err != nil {
					t.Error(err)
					return
				}
				if f.Size() != uint64(4096<<(i%2)) {
					t.Errorf("size %d", f.Size())
				}
				f.Close()
			}
		})
	}
	wg.Wait()
	if files.Len() != 0 {
		t.Fatalf("%d mapped", files.Len())
	}
}

// A sparse file of any size costs its owner no memory, so a Space and a Files bound what they map.
//
// Invariant: dma: A file is mapped once (a file of hugetlbfs once per space), and one guest cannot
// take the whole address space of the process.
func TestOneGuestCannotTakeTheAddressSpace(t *testing.T) {
	leakFree(t)
	files := NewFiles()
	greedy, other := NewSpace("greedy", files), NewSpace("other", files)
	huge := []int{memfd(t, maxFile), memfd(t, maxFile)}
	add(t, greedy, Map{Size: page, FD: huge[0]})
	add(t, greedy, Map{IOVA: page, Size: page, FD: huge[0]})
	more := []Map{{IOVA: 2 * page, Size: page, FD: huge[1]}}
	testkit.ErrorIs(t, greedy.Add(more[0]), unix.ENOSPC, "Add")
	testkit.ErrorIs(t, greedy.Replace(more), unix.ENOSPC, "Replace")
	add(t, other, more[0])
	testkit.OK(t, greedy.Close())
	for i := range uint64(maxSpaceFiles + 1) {
		fd, err := unix.MemfdCreate("small", unix.MFD_CLOEXEC)
		testkit.OK(t, err)
		truncate(t, fd, page)
		err = greedy.Add(Map{IOVA: i * page, Size: page, FD: fd})
		unix.Close(fd)
		if full := i == maxSpaceFiles; full != errors.Is(err, unix.ENOSPC) || !full && err != nil {
			t.Fatalf("file %d: %v", i, err)
		}
	}
	size := files.size
	files.size = maxBytes - maxFile + 1
	testkit.ErrorIs(t, testkit.Err(files.Open(huge[0], 0)), unix.ENOSPC, "Open")
	files.size = size
	greedy.Close()
	other.Close()
	if files.Len() != 0 || files.size != 0 || len(greedy.using) != 0 || greedy.reach != 0 {
		t.Fatalf("left: %d files of %#x bytes", files.Len(), files.size)
	}
}
