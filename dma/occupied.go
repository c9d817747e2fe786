package dma

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// maxCountedFiles is how many files a Space has at most whose memory is counted: each costs a descriptor.
const maxCountedFiles = 32

// CountMemory makes the space keep a descriptor of each file of memory that is mapped from now on, 32 at most, so that
// Occupied can ask what these files occupy. It is called while nothing is mapped: before the first Map, and whenever
// another peer begins to use the space, as it also forgets the files that were unmapped.
func (s *Space) CountMemory() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts.Store(true)
	s.left, s.leftMore = make(map[FileID]uint64), 0
}

// Occupied returns how many bytes of memory the files of the space occupy, holes left out: memfds, and files of tmpfs
// and hugetlbfs. What is written into a hole, by whoever it is, occupies memory from then on; the kernel charges who
// writes first. A file that was unmapped counts with what it occupied then, until it is mapped again or CountMemory is
// called: its owner may keep it, and with it the memory. Files of disks and of GPUs are not counted; nothing is without
// CountMemory.
func (s *Space) Occupied() (bytes uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for f := range s.using {
		bytes += f.occupied()
	}
	for _, n := range s.left {
		bytes += n
	}
	return bytes + s.leftMore
}

// occupied returns how many bytes the file occupies; 0 if nobody counts them. A space that uses the file holds it.
func (f *File) occupied() uint64 {
	f.files.mu.Lock()
	fd := f.fd
	f.files.mu.Unlock()
	var st unix.Stat_t
	if fd < 0 || f.GPU() >= 0 || unix.Fstat(fd, &st) != nil {
		return 0
	}
	return uint64(st.Blocks) * 512 // inode(7): st_blocks
}

// leave notes what a file occupies that the space does not use any more. Under mu.
func (s *Space) leave(f *File) {
	if !s.counts.Load() {
		return
	}
	switch n := f.occupied(); {
	case n == 0:
	case len(s.left) < maxSpaceFiles:
		s.left[f.id] = n
	default: // it counts, but is not known if it comes again
		s.leftMore += n
	}
}

// keep keeps a descriptor of a file of memory, where a space counts it. Under files.mu.
func (f *File) keep(s *Space, fd int) (err error) {
	if s == nil || !s.counts.Load() || f.fd >= 0 || f.GPU() >= 0 {
		return nil
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0); err != nil { // of a disk
		return nil
	}
	if f.fd, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0); err != nil {
		f.fd = -1
		return fmt.Errorf("file %v: to count its memory: %w", f, err)
	}
	return nil
}
