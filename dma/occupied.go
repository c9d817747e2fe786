package dma

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// maxCountedFiles is how many files a Space has at most whose memory is counted: each costs a descriptor.
const maxCountedFiles = 32

// CountMemory has the space keep a descriptor of each file of memory that is mapped from now on, 32 at most, so that
// Occupied can ask what these occupy. It is called before the first Map.
func (s *Space) CountMemory() { s.counts.Store(true) }

// Occupied returns how many bytes of memory the files of the space occupy, holes left out: memfds, and files of tmpfs
// and hugetlbfs. What is written into a hole, by whoever it is, occupies memory from then on; the kernel charges who
// writes first. Files of disks and of GPUs are not counted; nothing is without CountMemory.
func (s *Space) Occupied() (bytes uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for f := range s.using { // which hold what keep has kept
		f.files.mu.Lock()
		fd := f.fd
		f.files.mu.Unlock()
		var st unix.Stat_t
		if fd >= 0 && f.GPU() < 0 && unix.Fstat(fd, &st) == nil {
			bytes += uint64(st.Blocks) * 512 // inode(7): st_blocks
		}
	}
	return bytes
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
