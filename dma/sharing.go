package dma

import (
	"fmt"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/time/rate"

	"vnic.dev/vnic/internal/procmaps"
)

// ErrNotShared is an ErrAccess: the peer has the memory mapped privately, so what the guest writes there is in copies
// of the file's pages, and the file has none of it.
var ErrNotShared = fmt.Errorf("%w: the peer has this memory mapped privately, not shared (share=on)", ErrAccess)

// Sharing is how a process has a file mapped.
type Sharing uint8

// How a process has a file mapped. One that has it mapped both ways shares it.
const (
	SharingUnknown Sharing = iota // the process has not mapped the file, or its maps may not be read
	SharingOn
	SharingOff // privately
)

// SharingOf looks at how a process has the file mapped that has this device and inode (/proc/PID/maps, 1 MiB of it at
// the most). It is SharingUnknown of another user's process, of one in another PID namespace, whose pid is 0, and where
// the file system has other device numbers there than in stat(2), as btrfs does.
//
// A Space trusts such a process to share what it maps: nothing else tells. A write to a private mapping allocates the
// file's page (SEEK_DATA finds it), and in /proc/self/pagemap bit 61 is set of every file's page, bit 56 (mapped here
// alone) also of a shared page that the peer's page tables lack for the moment (Linux 6.18).
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
	if sharing == SharingOff && !complete { // it may be shared further on
		return SharingUnknown
	}
	return sharing
}

// How often a Space looks at its peer's mappings: a peer may map files as often as it likes. Beyond it the last answer
// counts, or none.
const (
	sharingBurst = 64
	sharingRate  = 10 // a second
)

// peer is who maps memory into a Space.
type peer struct {
	mu      sync.Mutex
	ask     func(pid int, dev, ino uint64) Sharing // SharingOf, if nil
	pid     int                                    // 0: none that is known
	private func(m Map, file string)
	limit   *rate.Limiter
	answers map[FileID]answer // maxSpaceFiles at the most
	removed atomic.Uint64     // private regions that were removed
}

// answer is how a file was mapped when removed was so.
type answer struct {
	removed uint64
	sharing Sharing
}

// SetSharing sets who looks at mappings in the place of SharingOf, for a process that may not. It is called before
// SetPeer.
func (s *Space) SetSharing(ask func(pid int, dev, ino uint64) Sharing) {
	s.peer.mu.Lock()
	defer s.peer.mu.Unlock()
	s.peer.ask = ask
}

// SetPeer sets the process whose memory is mapped from now on. Before the first region of a file is added, and of each
// file at each Replace, the space looks whether that process has the file mapped privately. Then the region is as with
// Map.NoAccess, but for the error of its use, ErrNotShared; and the first region that finds the file so is given to
// private, with the file's name. A pid of 0 is no process: nothing is looked at. A space looks 64 times at once, and 10
// times a second; when it may not, the last answer for the file counts.
func (s *Space) SetPeer(pid int, private func(m Map, file string)) {
	p := &s.peer
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pid, p.private = pid, private
	p.limit, p.answers = rate.NewLimiter(sharingRate, sharingBurst), make(map[FileID]answer)
}

// isPrivate reports whether the peer has the file of m mapped privately. It looks, unless a region of the file is here
// already; if again, then too.
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
		name, _ := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", m.FD)) // "": nobody knows
		private(*m, name)
	}
	return now.sharing == SharingOff
}

// mapped reports whether a region of the file is mapped here.
func (s *Space) mapped(id FileID) bool {
	s.files.mu.Lock()
	f := s.files.open[id]
	s.files.mu.Unlock()
	return s.Has(f)
}
