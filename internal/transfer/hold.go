package transfer

import (
	"errors"
	"os"
	"sync"
	"time"

	"vnic.dev/vnic/devmem"
)

// held is tokens that a receiver keeps though it has gathered what they stand for: how a page pool
// is exhausted on purpose.
type held struct {
	limit uint64        // tokens; 0: nothing is held
	wait  time.Duration // without data, until they are given back; 0: for ever

	mu     sync.Mutex
	sets   []devmem.Tokens // under mu
	tokens uint64          // under mu: in sets
	most   uint64          // under mu
	stalls uint64          // under mu: how often they were given back
}

// take keeps tokens, as many as there is room for, and returns the others.
func (h *held) take(t devmem.Tokens) (rest devmem.Tokens) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.stalls > 0 || h.tokens >= h.limit {
		return t
	}
	room := h.limit - h.tokens
	if uint64(t.Len()) > room {
		var keep devmem.Tokens
		for ranges := range t.Calls() {
			for _, r := range ranges {
				for i := range r.Count {
					if uint64(keep.Len()) < room {
						keep.Add(r.Start + i)
					} else {
						rest.Add(r.Start + i)
					}
				}
			}
		}
		t = keep
	}
	h.sets = append(h.sets, t)
	h.tokens += uint64(t.Len())
	h.most = max(h.most, h.tokens)
	return rest
}

// deadline is until when a receiver may wait for data.
func (h *held) deadline() (t time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.wait > 0 && h.stalls == 0 && h.limit > 0 {
		t = time.Now().Add(h.wait)
	}
	return t
}

// stalled gives everything back if err says that the deadline has passed, and holds nothing from then on.
func (h *held) stalled(c devmem.Conn, err error) (bool, error) {
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return false, nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.tokens == 0 { // no sender waits for what we hold
		return true, nil
	}
	h.stalls++
	for i := range h.sets {
		if err := h.sets[i].GiveBack(c); err != nil {
			return true, err
		}
	}
	h.sets, h.tokens = nil, 0
	return true, nil
}

// counts gives the most tokens that were held at a time, and how often they were given back.
func (h *held) counts() (most, stalls uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.most, h.stalls
}
