package wire

import (
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
)

const (
	buckets    = 1024
	ways       = 8
	maxPerLink = 128 // addresses of one link; a further one replaces the one learned first
)

// macTable maps addresses to links. Each entry is one word, so a lookup takes no lock. A guest that invents
// addresses that no other link has displaces only addresses of its own link.
type macTable struct {
	seed  uint64
	slots [buckets][ways]atomic.Uint64 // link id + 1 in the top 16 bits, address below; 0: empty

	mu     sync.Mutex
	byLink map[uint16][]uint64 // addresses of each link, oldest first
}

func newMACTable() *macTable {
	return &macTable{seed: rand.Uint64(), byLink: make(map[uint16][]uint64)}
}

const macMask = 1<<48 - 1

func (m MAC) key() uint64 {
	return uint64(m[0])<<40 | uint64(m[1])<<32 | uint64(m[2])<<24 | uint64(m[3])<<16 | uint64(m[4])<<8 | uint64(m[5])
}

func (m MAC) multicast() bool { return m[0]&1 != 0 }

// bucket returns an address's bucket, by a hash. The seed keeps guests from aiming at one bucket.
func (t *macTable) bucket(key uint64) *[ways]atomic.Uint64 {
	return &t.slots[mix64(key^t.seed)%buckets]
}

func (t *macTable) lookup(key uint64) (id uint16, ok bool) {
	b := t.bucket(key)
	for i := range b {
		if v := b[i].Load(); v&macMask == key && v != 0 {
			return uint16(v>>48) - 1, true
		}
	}
	return 0, false
}

// learn records that an address is behind a link. It returns false if the address's bucket has no room.
func (t *macTable) learn(key uint64, id uint16) bool {
	if old, ok := t.lookup(key); ok && old == id {
		return true
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.slot(key, false)
	if s != nil {
		old := uint16(s.Load()>>48) - 1
		if old == id {
			return true
		}
		t.removeFrom(old, key)
	} else if s = t.slot(key, true); s == nil {
		return false
	}
	t.addTo(id, key)
	s.Store((uint64(id)+1)<<48 | key)
	return true
}

// slot returns the slot that has an address, or, if empty is true, an unused slot in its bucket; nil: there is none.
// The caller holds mu.
func (t *macTable) slot(key uint64, empty bool) *atomic.Uint64 {
	b := t.bucket(key)
	for i := range b {
		if v := b[i].Load(); empty && v == 0 || !empty && v != 0 && v&macMask == key {
			return &b[i]
		}
	}
	return nil
}

// addTo adds an address to byLink. If the link has maxPerLink addresses, it first removes the oldest from byLink and
// slots. The caller holds mu.
func (t *macTable) addTo(id uint16, key uint64) {
	keys := t.byLink[id]
	if len(keys) >= maxPerLink {
		if s := t.slot(keys[0], false); s != nil {
			s.Store(0)
		}
		keys = slices.Delete(keys, 0, 1)
	}
	t.byLink[id] = append(keys, key)
}

// removeFrom removes an address from byLink. The caller holds mu.
func (t *macTable) removeFrom(id uint16, key uint64) {
	if i := slices.Index(t.byLink[id], key); i >= 0 {
		t.byLink[id] = slices.Delete(t.byLink[id], i, i+1)
	}
}

func (t *macTable) forget(id uint16) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, key := range t.byLink[id] {
		if s := t.slot(key, false); s != nil {
			s.Store(0)
		}
	}
	delete(t.byLink, id)
}
