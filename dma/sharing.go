package dma

import (
	"fmt"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/time/rate"

	"vnic.dev/vnic/internal/procmaps"
)

// ErrNotShared is an ErrAccess: the peer has mapped the memory privately, so the guest's writes do not change
// the file.
var ErrNotShared = fmt.Errorf("%w: the peer has this memory mapped privately, not shared (share=on)", ErrAccess)

// Sharing is how a process has mapped a file.
type Sharing uint8

// Values of Sharing. A process that has mapped a file both privately and shared counts as sharing it.
const (
	SharingUnknown Sharing = iota // no mapping of the file was found, or not all maps could be read
	SharingOn
	SharingOff // mapped privately only
)

// SharingOf reads from /proc/PID/maps (at most 1 MiB of it) how a process has mapped the file with this device
// and inode. The result is SharingUnknown if this process may not read the maps, for a pid of 0 (a process of
// another PID namespace), if the file system has other device numbers in the maps than in stat(2), as btrfs
// does, and if the part that was read has only private mappings but is not all.
func SharingOf(pid int, dev, ino uint64) Sharing {
	if pid <= 0 {
		return SharingUnknown
	}
	sharing := SharingUnknown
	complete := procmaps.Read(pid, func(m *procmaps.Mapping) bool {
		switch {
		case m.Dev != dev || m.Ino != ino:
			return true
		case m.Shared:
			sharing = SharingOn
		default:
			sharing = SharingOff
		}
		return !m.Shared
	})
	if sharing == SharingOff && !complete { // the rest may have a shared mapping
		return SharingUnknown
	}
	return sharing
}

// These limits bound how often a Space checks its peer's mappings. Beyond them the last answer for the file
// applies; without one, the space takes the file for shared.
const (
	sharingBurst = 64
	sharingRate  = 10 // a second
)

// peer is the process that maps memory into a Space.
type peer struct {
	mu      sync.Mutex
	ask     func(pid int, dev, ino uint64) Sharing // nil: SharingOf
	pid     int                                    // 0: unknown
	private func(m Map, file string)
	limit   *rate.Limiter
	answers map[FileID]answer // at most maxSpaceFiles
	removed atomic.Uint64     // private regions that the space has removed
}

// answer is the result of a check, with peer.removed at that time.
type answer struct {
	removed uint64
	sharing Sharing
}

// SetSharing makes the space call ask instead of SharingOf, for a process that may not read the peer's maps.
// Call it before SetPeer.
func (s *Space) SetSharing(ask func(pid int, dev, ino uint64) Sharing) {
	s.peer.mu.Lock()
	defer s.peer.mu.Unlock()
	s.peer.ask = ask
}

// SetPeer sets the process whose memory the space maps from now on. The space checks whether that process has
// mapped a file privately. If so, the region is like one with Map.NoAccess, but its error is ErrNotShared; and
// the space calls private with the first such region of a file, and the file's name. With a pid of 0 the space
// checks nothing. The rate of checks is limited: beyond it the last answer for the file applies.
func (s *Space) SetPeer(pid int, private func(m Map, file string)) {
	p := &s.peer
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pid, p.private = pid, private
	p.limit, p.answers = rate.NewLimiter(sharingRate, sharingBurst), make(map[FileID]answer)
}

// isPrivate reports whether the peer has mapped the file of m privately. Unless again is set, it repeats the
// earlier result if the space maps a region of the file already, or if the file was private and the space has
// removed no private region since.
func (s *Space) isPrivate(m *Map, id FileID, again bool) bool {
	p := &s.peer
	p.mu.Lock()
	pid, private, ask, limit, last := p.pid, p.private, p.ask, p.limit, p.answers[id]
	p.mu.Unlock()
	switch {
	case pid <= 0:
		return false
	case again:
	case last.sharing == SharingOff && last.removed == p.removed.Load():
		return true
	case s.mapped(id):
		return false
	}
	if !limit.Allow() {
		return last.sharing == SharingOff
	}
	if ask == nil {
		ask = SharingOf
	}
	now := answer{p.removed.Load(), ask(pid, id.dev, id.ino)}
	p.mu.Lock()
	if _, ok := p.answers[id]; ok || len(p.answers) < maxSpaceFiles {
		p.answers[id] = now
	}
	p.mu.Unlock()
	if now.sharing == SharingOff && last.sharing != SharingOff && private != nil {
		name, _ := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", m.FD)) // "" if the link cannot be read
		private(*m, name)
	}
	return now.sharing == SharingOff
}

func (s *Space) mapped(id FileID) bool {
	s.files.mu.Lock()
	f := s.files.open[id]
	s.files.mu.Unlock()
	return s.Has(f)
}
