package devmem

import (
	"fmt"
	"iter"
	"syscall"
)

// Tokens collects tokens for few calls of [Conn.DontNeed]. The zero Tokens is ready for use; one goroutine at a
// time uses it.
type Tokens struct {
	ranges []TokenRange
	n      int
}

// Add adds a token.
func (t *Tokens) Add(token uint32) {
	t.n++
	if k := len(t.ranges); k > 0 {
		if r := &t.ranges[k-1]; r.Start+r.Count == token && r.Count < MaxFrags {
			r.Count++
			return
		}
	}
	t.ranges = append(t.ranges, TokenRange{Start: token, Count: 1})
}

// Len returns the number of tokens.
func (t *Tokens) Len() int { return t.n }

// Reset removes all tokens.
func (t *Tokens) Reset() { t.ranges, t.n = t.ranges[:0], 0 }

// Calls yields, for all tokens, the arguments of calls of DontNeed within its limits, MaxTokenRanges and MaxFrags. The
// slices are valid until t changes.
func (t *Tokens) Calls() iter.Seq[[]TokenRange] {
	return func(yield func([]TokenRange) bool) {
		for rest := t.ranges; len(rest) > 0; {
			k, n := 0, uint32(0)
			for k < len(rest) && k < MaxTokenRanges && n+rest[k].Count <= MaxFrags {
				n += rest[k].Count
				k++
			}
			if !yield(rest[:k]) {
				return
			}
			rest = rest[k:]
		}
	}
}

// GiveBack returns the tokens to c, and empties t. If DontNeed returns an error, t keeps all tokens, returned or not.
// EPROTO: c has not issued all of them, or some were given back before; GiveBack has returned the others.
func (t *Tokens) GiveBack(c Conn) error {
	freed, n := 0, t.n
	for ranges := range t.Calls() {
		k, err := c.DontNeed(ranges)
		if err != nil {
			return fmt.Errorf("give tokens back: %w", err)
		}
		freed += k
	}
	t.Reset()
	if freed != n {
		return fmt.Errorf("give %d tokens back: %d were known: the others are another connection's, or were given back "+
			"before: %w", n, freed, syscall.EPROTO)
	}
	return nil
}
