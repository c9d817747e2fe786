package nic

import (
	"slices"
	"testing"
	"time"
)

// Invariant: nic: Above level Debug, the rate of log lines that a guest can cause is bounded.
func TestLogLimit(t *testing.T) {
	var l LogLimit
	var got []int
	now := time.Unix(0, 0)
	for range 30 {
		if held, ok := l.allow(now); ok {
			got = append(got, held)
		}
		now = now.Add(100 * time.Millisecond)
	}
	if !slices.Equal(got, []int{0, 9, 9}) {
		t.Errorf("%d", got)
	}
}
