package dma

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// ErrBadFile is returned by Files.Open and Space.Add for a descriptor that cannot be a guest's memory.
var ErrBadFile = errors.New("bad memory file")

// ErrClosed is returned by the copier for a place in a file that is not mapped any more: a Segment was kept too long.
var ErrClosed = errors.New("memory is no longer mapped")

// A sparse file costs its owner nothing, but us address space (47 bits on amd64) and a mapping
// (vm.max_map_count, 65530), which the Go heap needs as well. So one space cannot take what others
// need, nor all of them what the process needs.
const (
	maxFile       = 1 << 43 // bytes
	maxSpaceBytes = 1 << 43
	maxSpaceFiles = 1024
	maxBytes      = 1 << 46
	maxFiles      = 16384
)

// Files is the registry of mapped files. Files of one process that are to know each other (the guests' and the GPUs')
// are opened in one registry.
type Files struct {
	mu   sync.Mutex
	open map[FileID]*File // under mu
	size uint64           // under mu: sum of their sizes
}

// NewFiles returns an empty registry.
func NewFiles() *Files {
	return &Files{open: make(map[FileID]*File)}
}

// Len returns how many files are mapped.
func (fs *Files) Len() int {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return len(fs.open)
}

// Open maps the file behind fd, whole, shared and writable, unless it is mapped already, and takes a reference. fd
// stays the caller's and may be closed at once: the mapping keeps the inode. It is an ErrBadFile if fd is not open
// for reading and writing, is no regular file (memfd, tmpfs, hugetlbfs or disk) of this machine, or is shorter than
// need; ENOSPC if too much is mapped already. A file that has grown since it was mapped keeps its old size until its
// last reference is closed.
//
// It waits for no server that is behind a file, and 2 s at the most for a disk: ErrBlocked then.
func (fs *Files) Open(fd int, need uint64) (*File, error) {
	id, size, err := check(fd)
	if err != nil {
		return nil, err
	}
	return fs.openFor(nil, fd, id, size, need)
}

// openFor is Open for a Space, which hugetlbfs files are known in alone, of a file that check has looked at.
func (fs *Files) openFor(s *Space, fd int, id FileID, size, need uint64) (*File, error) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	f := fs.open[id]
	if f != nil {
		if err := f.usable(); err != nil {
			return nil, fmt.Errorf("file %v: %w", f, err)
		}
		if need > f.Size() {
			return nil, fmt.Errorf("%w: file %v: %#x bytes needed, %#x mapped: a grown file must be closed everywhere first",
				ErrBadFile, f, need, f.Size())
		}
		if err := f.keep(s, fd); err != nil {
			return nil, err
		}
		f.refs++
		return f, nil
	}
	if need > size {
		return nil, fmt.Errorf("%w: file %v: %#x bytes needed, it has %#x", ErrBadFile, id, need, size)
	}
	if len(fs.open) >= maxFiles || size > maxBytes-fs.size {
		return nil, fmt.Errorf("file %v: %#x bytes: %d files of %#x bytes are mapped already: %w", id, size,
			len(fs.open), fs.size, unix.ENOSPC)
	}
	f = &File{files: fs, id: id, refs: 1, spaces: make(map[*Space]int), fd: -1}
	f.gpu.Store(-1)
	if err := f.mapFile(fd, int(size)); err != nil { // size <= maxFile, so it is an int
		return nil, fmt.Errorf("%w: file %v: mmap of %#x bytes: %w", ErrBadFile, id, size, err)
	}
	if err := f.keep(s, fd); err != nil {
		f.unmap()
		return nil, err
	}
	fs.open[id] = f
	fs.size += size
	return f, nil
}

// File is a file mapped once. Its methods may be called from any goroutine.
type File struct {
	files *Files
	id    FileID
	mem   []byte  // set by mapFile, never changed
	base  uintptr // address of mem
	refs  int     // under files.mu
	fd    int     // under files.mu until it is set: of the file, by which Space.Occupied asks; -1: none

	gpu  atomic.Int32             // -1 = none
	node atomic.Int32             // 1 + the NUMA node whose RAM it is; 0 = not known
	gone atomic.Pointer[gone]     // why mem must not be touched any more; nil while it may be
	bufs atomic.Pointer[[]extent] // registered GPU buffers, sorted, disjoint and not touching; nil = none

	mu         sync.Mutex
	registered []extent       // under mu: as given to Register, sorted
	spaces     map[*Space]int // under mu: who maps it, how often
}

// gone says why a file may not be touched.
type gone struct {
	err   error
	fault *FaultError // nil if it was closed
}

// Close drops the reference that Open took; the last one unmaps the file.
func (f *File) Close() {
	f.files.mu.Lock()
	f.refs--
	refs := f.refs
	if refs == 0 {
		delete(f.files.open, f.id)
		f.files.size -= f.Size()
	}
	f.files.mu.Unlock()
	switch {
	case refs == 0:
		f.gone.CompareAndSwap(nil, &gone{err: fmt.Errorf("file %v: %w", f, ErrClosed)})
		f.unmap() // outside the lock: it takes a while for gigabytes, and others may open files
		if f.fd >= 0 {
			_ = unix.Close(f.fd) // of memory: it waits for nobody
		}
	case refs < 0:
		panic("dma: File closed more often than opened") // our own bug: someone else's mapping would be gone
	}
}

// hold takes one more reference; the caller knows that there is one.
func (f *File) hold() {
	f.files.mu.Lock()
	f.refs++
	f.files.mu.Unlock()
}

// Size returns the mapped size, which is the file's when it was opened first.
func (f *File) Size() uint64 { return uint64(len(f.mem)) }

// String returns the file's device and inode.
func (f *File) String() string { return f.id.String() }

// Dead reports whether a fault was seen in the file. It stays dead until its last reference is closed.
func (f *File) Dead() bool {
	g := f.gone.Load()
	return g != nil && g.fault != nil
}

// usable returns why the file must not be touched, or nil.
func (f *File) usable() error {
	if g := f.gone.Load(); g != nil {
		return g.err
	}
	return nil
}

// Region returns [off, off+n) of the file as a region of no space, for whoever works on the file itself (engines). It
// is good as long as the caller's reference.
func (f *File) Region(off, n uint64) (*Region, error) {
	if off > f.Size() || n > f.Size()-off {
		return nil, fmt.Errorf("%w: file %v: [%#x, +%#x) of %#x bytes", ErrBounds, f, off, n, f.Size())
	}
	return &Region{mem: f.mem[off : off+n : off+n], size: n, file: f, off: off}, nil
}
