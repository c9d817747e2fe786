package transfer

import (
	"errors"
	"os"
	"sync"
	"time"

	"vnic.dev/vnic/devmem"
)

// held are tokens that a receiver keeps, to exhaust a page pool on purpose.
type held struct {
	limit uint64        // the most tokens to keep; 0: none
	wait  time.Duration // the time without data after which all are returned; 0: never

	mu     sync.Mutex
	sets   []devmem.Tokens // under mu
	tokens uint64          // under mu: number of tokens in sets
	most   uint64          // under mu: the largest value of tokens
	stalls uint64          // under mu: 1 once all tokens were returned for lack of data
}

// take keeps tokens up to the limit, and returns the rest. It keeps none after stalled has returned tokens to the
// connection.
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

func (h *held) deadline() (t time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.wait > 0 && h.stalls == 0 && h.limit > 0 {
		t = time.Now().Add(h.wait)
	}
	return t
}

// stalled reports whether err is a passed deadline; if so, it returns all held tokens to the connection.
func (h *held) stalled(c devmem.Conn, err error) (bool, error) {
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return false, nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.tokens == 0 {
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

func (h *held) counts() (most, stalls uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.most, h.stalls
}
