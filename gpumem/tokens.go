package gpumem

import (
	"fmt"
	"syscall"
)

// Limits of DontNeed (net/core/sock.c: MAX_DONTNEED_TOKENS, MAX_DONTNEED_FRAGS).
const (
	MaxTokenRanges = 128
	MaxTokenFrags  = 1024
)

// TokenRange is Count tokens from Start (struct dmabuf_token).
type TokenRange struct{ Start, Count uint32 }

// Tokens is one socket's tokens, by which its user returns what it received. Each stands for a reference to a page of a
// Pool. Tokens is used by one goroutine at a time.
type Tokens struct {
	strict bool
	slots  []tokenSlot // by slot number; the first is never used
	free   bitmap      // strict: free slots below len(slots)
	fifo   []uint32    // not strict: free slots, the one returned first comes first
	head   int         // of fifo
	out    int
}

type tokenSlot struct {
	pool *Pool // nil: free
	off  uint64
	gen  uint32 // not strict: of the token that is out, or of the last one
}

// A token that is not strict is a slot number and, above it, how often the slot was used, modulo 2^tokenGenBits.
const (
	tokenSlotBits = 22
	tokenGenBits  = 32 - tokenSlotBits
)

// NewTokens returns no tokens. Strict numbers them as Linux does: the lowest free id from 1, used again at once, so that
// returning one twice can free another frag (net/ipv4/tcp.c: tcp_xa_pool_refill). Otherwise slots are used again as
// late as possible, and an id says how often its slot was used, so that returning it twice frees nothing.
func NewTokens(strict bool) *Tokens {
	return &Tokens{strict: strict, slots: make([]tokenSlot, 1)}
}

// Issue returns a token for the page that off is in, which has references.
func (t *Tokens) Issue(p *Pool, off uint64) (uint32, error) {
	slot, ok := t.take()
	if !ok {
		return 0, fmt.Errorf("%d tokens are out: %w", t.out, syscall.ENOMEM)
	}
	if err := p.change(func() error { return p.hold(off, 1) }); err != nil {
		t.give(slot)
		return 0, err
	}
	s := &t.slots[slot]
	s.pool, s.off = p, off
	t.out++
	if t.strict {
		return slot, nil
	}
	s.gen = (s.gen + 1) % (1 << tokenGenBits)
	return s.gen<<tokenSlotBits | slot, nil
}

// take takes a free slot.
func (t *Tokens) take() (slot uint32, ok bool) {
	if t.strict {
		if i, ok := t.free.takeFirst(); ok {
			return uint32(i), true
		}
	} else if t.head < len(t.fifo) {
		slot = t.fifo[t.head]
		if t.head++; t.head*2 > len(t.fifo) {
			t.fifo = t.fifo[:copy(t.fifo, t.fifo[t.head:])]
			t.head = 0
		}
		return slot, true
	}
	if len(t.slots) == 1<<tokenSlotBits {
		return 0, false
	}
	t.slots = append(t.slots, tokenSlot{})
	if n := len(t.slots); t.strict && n > len(t.free.words)*64 {
		grown := newBitmap(2 * n)
		copy(grown.words, t.free.words)
		copy(grown.sum, t.free.sum)
		t.free = grown
	}
	return uint32(len(t.slots) - 1), true
}

func (t *Tokens) give(slot uint32) {
	if t.strict {
		t.free.set(int(slot))
	} else {
		t.fifo = append(t.fifo, slot)
	}
}

// drop takes a token back, if it is out.
func (t *Tokens) drop(token uint32) bool {
	slot, gen := token, uint32(0)
	if !t.strict {
		slot, gen = token%(1<<tokenSlotBits), token>>tokenSlotBits
	}
	if int64(slot) >= int64(len(t.slots)) || t.slots[slot].pool == nil || t.slots[slot].gen != gen {
		return false
	}
	s := &t.slots[slot]
	_ = s.pool.change(func() error { return s.pool.drop(s.off, 1) }) // it has the reference that Issue took
	s.pool = nil
	t.give(slot)
	t.out--
	return true
}

// DontNeed returns tokens, as SO_DEVMEM_DONTNEED does (net/core/sock.c: sock_devmem_dontneed), and says how many were
// freed. Unknown tokens are passed over but count to the limit of MaxTokenFrags; what is beyond it is passed over without an
// error. The error is EINVAL if there is no range or more than MaxTokenRanges.
func (t *Tokens) DontNeed(ranges []TokenRange) (freed int, err error) {
	if len(ranges) == 0 || len(ranges) > MaxTokenRanges {
		return 0, fmt.Errorf("%d ranges of tokens, not 1 to %d: %w", len(ranges), MaxTokenRanges, syscall.EINVAL)
	}
	seen := 0
	for _, r := range ranges {
		for i := range r.Count {
			if seen++; seen > MaxTokenFrags {
				return freed, nil
			}
			if t.drop(r.Start + i) {
				freed++
			}
		}
	}
	return freed, nil
}

// Len returns how many tokens are out.
func (t *Tokens) Len() int { return t.out }

// Close returns all tokens and says how many these were.
func (t *Tokens) Close() int {
	n := t.out
	for slot := range t.slots {
		if s := &t.slots[slot]; s.pool != nil {
			t.drop(s.gen<<tokenSlotBits | uint32(slot))
		}
	}
	return n
}
