package dma

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// ErrBadFile is the error for an unsuitable descriptor or file.
var ErrBadFile = errors.New("bad memory file")

// ErrClosed is the error for an access to a file that is no longer mapped.
var ErrClosed = errors.New("memory is no longer mapped")

// Limits of one file, of a Space's files (maxSpace...) and of all files of a Files. They are needed because a sparse
// file costs its owner nothing, but this process address space (47 bits on amd64) and a mapping (vm.max_map_count, by
// default 65530).
const (
	maxFile       = 1 << 43 // bytes
	maxSpaceBytes = 1 << 43
	maxSpaceFiles = 1024
	maxBytes      = 1 << 46
	maxFiles      = 16384
)

// Files is the registry of mapped files, which spaces share.
type Files struct {
	mu   sync.Mutex
	open map[FileID]*File // under mu
	size uint64           // under mu: bytes of the open files
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

// Open maps the file behind fd, whole, shared and writable, unless fs has mapped it, and takes a reference. The
// caller still owns fd, and may close it when Open has returned. ErrBadFile: fd is not open for reading and writing,
// or no regular file of memory or a local disk, or empty, or longer than 8 TiB, or it cannot be mapped (a sealed
// memfd); or the file, or a mapping that exists, is shorter than need. ENOSPC: the registry has mapped too much
// already. ErrFault: the file is mapped and has faulted.
//
// Open never waits for a server behind a file. It waits at most 2 s for a disk to answer statx; then the
// error is both ErrBlocked and ErrBadFile.
func (fs *Files) Open(fd int, need uint64) (*File, error) {
	id, size, err := check(fd)
	if err != nil {
		return nil, err
	}
	return fs.openFor(nil, fd, id, size, need)
}

// openFor is Open with the id and the size that check has returned for fd. s is the space that will map the file, or
// nil; on hugetlbfs the id is s's (FileID.in).
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
	if err := f.mapFile(fd, int(size)); err != nil { // size fits in an int, as it is at most maxFile
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

// File is a file that is mapped once. Several goroutines may call its methods.
type File struct {
	files *Files
	id    FileID
	mem   []byte  // set by mapFile, then constant
	base  uintptr // the address of mem
	refs  int     // under files.mu
	fd    int     // under files.mu: a duplicate of the descriptor, for Space.Occupied; -1: none

	gpu  atomic.Int32             // id of the GPU whose memory the file is; -1: none
	node atomic.Int32             // 1 + the number of the guest's NUMA node whose RAM the file is; 0: unknown
	gone atomic.Pointer[gone]     // nil: mem is usable
	bufs atomic.Pointer[[]extent] // union of registered, sorted, disjoint and not adjacent; nil: none

	mu         sync.Mutex
	registered []extent       // under mu: the registered ranges, sorted
	spaces     map[*Space]int // under mu: number of regions in each space, also removed ones that workers may use
}

// gone says why the memory cannot be used any more.
type gone struct {
	err   error
	fault *FaultError // nil: the file was closed
}

// Close drops the reference that Open took. When no reference is left (regions of spaces and Pins have references,
// too), Close unmaps the file. It panics if there was none.
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
		f.unmap() // without files.mu, as it takes long
		if f.fd >= 0 {
			_ = unix.Close(f.fd) // closing a memory file does not block
		}
	case refs < 0:
		panic("dma: File closed more often than opened") // a Close before this one has unmapped the file
	}
}

// hold takes one more reference. The caller makes sure that hold begins with at least one.
func (f *File) hold() {
	f.files.mu.Lock()
	f.refs++
	f.files.mu.Unlock()
}

// Size returns the mapped size in bytes.
func (f *File) Size() uint64 { return uint64(len(f.mem)) }

// String returns the file's device and inode.
func (f *File) String() string { return f.id.String() }

// Dead reports whether the file has faulted.
func (f *File) Dead() bool {
	g := f.gone.Load()
	return g != nil && g.fault != nil
}

// usable returns an error if the file has faulted or its last reference was dropped.
func (f *File) usable() error {
	if g := f.gone.Load(); g != nil {
		return g.err
	}
	return nil
}

// Region returns [off, off+n) of the file as a region outside any space; ErrBounds if that is not in the file. The
// region is valid while the caller holds its reference to the file.
func (f *File) Region(off, n uint64) (*Region, error) {
	if off > f.Size() || n > f.Size()-off {
		return nil, fmt.Errorf("%w: file %v: [%#x, +%#x) of %#x bytes", ErrBounds, f, off, n, f.Size())
	}
	return &Region{mem: f.mem[off : off+n : off+n], size: n, file: f, off: off}, nil
}
