package nic

import (
	"testing"

	"pgregory.net/rapid"
)

// seen.add returns the same as a model that keeps each sequence number, also where the numbers wrap.
//
// Invariant: nic: A flow counter counts only its connection, by kind of memory, and detects
// retransmissions.
func TestSeenIsASet(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		start := rapid.SampledFrom([]uint32{0, 1 << 31, ^uint32(0) - 200, 12345}).Draw(t, "start")
		var s seen
		s.begin(start)
		model := map[uint32]bool{}
		for range rapid.IntRange(1, 60).Draw(t, "packets") {
			from := start + uint32(rapid.IntRange(0, 400).Draw(t, "from"))
			n := uint32(rapid.IntRange(0, 60).Draw(t, "n"))
			want := uint32(0)
			for i := range n {
				if model[from+i] {
					want++
				}
				model[from+i] = true
			}
			if again := s.add(from, n); again != want {
				t.Fatalf("[%d, +%d): %d again, want %d; edge %d, %v", from-start, n, again, want, s.edge-start, s.ranges[:s.n])
			}
		}
	})
}

// With more gaps than maxRanges, bytes of the lowest gap count as seen, and bytes of the highest do not.
func TestSeenForgetsTheOldestGap(t *testing.T) {
	var s seen
	s.begin(0)
	for i := range uint32(maxRanges + 10) {
		if again := s.add(2*i+1, 1); again != 0 {
			t.Fatalf("byte %d: again %d", 2*i+1, again)
		}
	}
	if again := s.add(0, 1); again != 1 {
		t.Errorf("a gap given up: %d", again)
	}
	if again := s.add(2*(maxRanges+8), 1); again != 0 {
		t.Errorf("the last gap: %d", again)
	}
	if again := s.add(2*(maxRanges+8)-1, 3); again != 3 {
		t.Errorf("around it: %d", again)
	}
	s.begin(0)
	if s.edge == 0 {
		t.Error("forgotten")
	}
	s.begin(77)
	if again := s.add(77, 10); again != 0 {
		t.Errorf("a new connection: %d", again)
	}
}
