package capture

import (
	"sync"
	"testing"
)

// Each producer reserves two records and commits the second one first.
//
// Invariant: wire/capture: A capture has all passed frames that it does not count as missed, in
// order, and no byte of payload that was not requested, except headers of RoCEv2.
func TestRingKeepsOrder(t *testing.T) {
	const producers, each, size = 4, 5000, 64
	r := newRing(size, 1)
	var wg sync.WaitGroup
	var refused [producers]uint32
	for p := range producers {
		wg.Go(func() {
			for n := uint32(1); n <= each; n += 2 {
				first, second := r.reserve(), r.reserve()
				if second != nil {
					second.length, second.segments = n+1, uint32(p)
					second.commit()
				} else {
					refused[p]++
				}
				if first != nil {
					first.length, first.segments = n, uint32(p)
					first.commit()
				} else {
					refused[p]++
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	var last [producers]uint32
	got := uint32(0)
	for ended := false; ; {
		rec := r.next()
		if rec == nil {
			if ended {
				break
			}
			select {
			case <-done:
				ended = true
			default:
			}
			continue
		}
		if rec.length <= last[rec.segments] {
			t.Fatalf("producer %d: %d after %d", rec.segments, rec.length, last[rec.segments])
		}
		last[rec.segments] = rec.length
		got++
		r.free()
	}
	for _, n := range refused {
		got += n
	}
	if got != producers*each || !r.empty() {
		t.Errorf("%d of %d came or were refused", got, producers*each)
	}
	for range size {
		if r.reserve() == nil {
			t.Fatal("refused, and there is room")
		}
	}
	if r.reserve() != nil {
		t.Error("more than it has")
	}
}
