package dma

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// maxCountedFiles is the most files that a Space maps at a time while it counts memory (CountMemory): for each it may
// keep a descriptor.
const maxCountedFiles = 32

// CountMemory makes Occupied count memfds and files of tmpfs and hugetlbfs that the space maps from now on,
// except GPUs' files. From then on the space maps at most 32 files at a time. Call CountMemory while nothing is
// mapped, and again before another peer uses the space: each call forgets the files that were unmapped before it.
func (s *Space) CountMemory() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts.Store(true)
	s.left, s.leftMore = make(map[FileID]uint64), 0
}

// Occupied returns how many bytes of memory, without holes, the files occupy that the space counts (CountMemory). An
// unmapped file counts, too, with the bytes that it occupied when it was unmapped, as its owner may still hold
// it: until it is mapped again or CountMemory is called. With more than 1024 unmapped files, one that is mapped
// again may count twice. Occupied is meaningful only after CountMemory.
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

// occupied returns the bytes of memory that a file occupies; 0 for a file that is not counted.
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

// leave remembers, if the space counts memory, how many bytes f occupies at its unmapping. The caller holds mu.
func (s *Space) leave(f *File) {
	if !s.counts.Load() {
		return
	}
	switch n := f.occupied(); {
	case n == 0:
	case len(s.left) < maxSpaceFiles:
		s.left[f.id] = n
	default: // leftMore keeps counting the file even if it is mapped again
		s.leftMore += n
	}
}

// keep makes f keep a duplicate of fd, for Occupied, if s counts f's memory. The caller holds files.mu.
func (f *File) keep(s *Space, fd int) (err error) {
	if s == nil || !s.counts.Load() || f.fd >= 0 || f.GPU() >= 0 {
		return nil
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0); err != nil { // a file of a disk is not counted
		return nil
	}
	if f.fd, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0); err != nil {
		f.fd = -1
		return fmt.Errorf("file %v: to count its memory: %w", f, err)
	}
	return nil
}
