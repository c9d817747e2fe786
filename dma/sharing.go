package dma

import (
	"fmt"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/time/rate"

	"vnic.dev/vnic/internal/procmaps"
)

// ErrNotShared is an ErrAccess: the peer has mapped the memory privately.
var ErrNotShared = fmt.Errorf("%w: the peer has this memory mapped privately, not shared (share=on)", ErrAccess)

// Sharing is how a process has mapped a file.
type Sharing uint8

// Values of Sharing. A process that has mapped a file both privately and shared counts as sharing it.
const (
	SharingUnknown Sharing = iota // no mapping was found, or no shared one and not all could be read
	SharingOn
	SharingOff
)

// SharingOf reads from /proc/PID/maps (at most 1 MiB of it) how a process has mapped the file with this device
// and inode. It returns SharingUnknown if it finds no mapping of the file: none exists, the maps cannot be read, pid
// is not positive, or the file system's device numbers differ between maps and stat(2), as for btrfs. It also returns
// SharingUnknown if it has read only a part of the maps, and has found only private mappings there.
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
	if sharing == SharingOff && !complete { // the rest may contain a shared mapping
		return SharingUnknown
	}
	return sharing
}

// Limits of how often a Space checks its peer's mappings (SetPeer). Beyond them the Space uses the last result about
// the file, or without one takes the file for shared.
const (
	sharingBurst = 64 // checks in a burst
	sharingRate  = 10 // checks per second
)

// peer is the process whose memory a Space maps.
type peer struct {
	mu      sync.Mutex
	ask     func(pid int, dev, ino uint64) Sharing // nil: SharingOf
	pid     int                                    // 0: unknown, no checks
	private func(m Map, file string)
	limit   *rate.Limiter
	answers map[FileID]answer
	removed atomic.Uint64 // number of private regions that the space has removed
}

// answer is the result of a check; removed is the value of peer.removed before the check.
type answer struct {
	removed uint64
	sharing Sharing
}

// SetSharing makes the space call ask instead of SharingOf (nil: SharingOf). SharingOf needs the right to read the
// peer's maps. Call SetSharing before SetPeer.
func (s *Space) SetSharing(ask func(pid int, dev, ino uint64) Sharing) {
	s.peer.mu.Lock()
	defer s.peer.mu.Unlock()
	s.peer.ask = ask
}

// SetPeer sets the process whose memory the space maps from now on. Add and Replace check whether that process
// has mapped a region's file privately; Add does not if the space maps the file already, and may use the last
// result. A region of a private file is like one with Map.NoAccess, but its error is ErrNotShared. If a check
// finds a file private, and the last check of it, if any, did not, the space calls private (unless it is nil)
// with the region and the file's name. A pid of 0 means no checks. The rate of checks is limited.
func (s *Space) SetPeer(pid int, private func(m Map, file string)) {
	p := &s.peer
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pid, p.private = pid, private
	p.limit, p.answers = rate.NewLimiter(sharingRate, sharingBurst), make(map[FileID]answer)
}

// isPrivate reports whether the peer has mapped the file of m privately; false if it has no result. It may repeat an
// earlier result: if again is set, only when the limit forbids a check.
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
		name, _ := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", m.FD))
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
