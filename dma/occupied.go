package dma

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// maxCountedFiles bounds the files of a Space that counts memory: each may keep a descriptor.
const maxCountedFiles = 32

// CountMemory makes memory files that the space maps from now on count for Occupied, except GPUs'; then it maps
// at most 32 files. Call it while nothing is mapped, and again before another peer uses the space.
func (s *Space) CountMemory() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts.Store(true)
	s.left, s.leftMore = make(map[FileID]uint64), 0
}

// Occupied returns how many bytes of memory the space's files occupy, without holes: memfds, and files of tmpfs
// and hugetlbfs. A file counts after its unmapping, too, until it is mapped again or CountMemory is called: its
// owner may still hold it. Occupied is meaningful only after CountMemory.
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

// leave remembers how many bytes f occupies. The caller holds mu.
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

// keep gives f a descriptor if s counts its memory. The caller holds files.mu.
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
