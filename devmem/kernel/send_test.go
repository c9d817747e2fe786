package kernel

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"vnic.dev/vnic/devmem"

	"vnic.dev/vnic/internal/testkit"
)

func small(n int) []devmem.Range { return slices.Repeat([]devmem.Range{{Off: 10, Len: 1}}, n) }

func TestGroup(t *testing.T) {
	page := devmem.Range{Off: 0, Len: devmem.PageSize}
	for _, c := range []struct {
		name   string
		ranges []devmem.Range
		mss    int
		want   int
	}{
		{"one", small(1), 1448, 1},
		{"as many as may be", small(maxPieces), 1448, maxPieces},
		{"one more", small(maxPieces + 1), 1448, maxPieces},
		{"a large one of many pieces", []devmem.Range{{Off: 5, Len: 1 << 20}}, 1448, 1},
		{"pages in between", slices.Concat(small(8), []devmem.Range{page}, small(8)), 1448, 17},
		{"pieces on either side of a page's end", slices.Repeat([]devmem.Range{{Off: devmem.PageSize - 1, Len: 2}}, 6), 1448,
			4},
		{"large enough pieces", slices.Repeat([]devmem.Range{{Off: 0, Len: 200}}, 50), 1448, 50},
		{"too many for a call", slices.Repeat([]devmem.Range{page}, maxIovecs+5), 1448, maxIovecs},
		{"segments of 9000 bytes", slices.Repeat([]devmem.Range{{Off: 0, Len: 200}}, 50), 8948, maxPieces},
	} {
		testkit.Equal(t, c.name, group(c.ranges, c.mss), c.want)
	}
}

// Invariant: devmem/kernel: No segment has more pieces than a driver can send.
func TestNoSegmentHasTooManyPieces(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		mss := rapid.IntRange(500, 9000).Draw(t, "mss")
		var ranges []devmem.Range
		for range rapid.IntRange(1, 60).Draw(t, "n") {
			ranges = append(ranges, devmem.Range{
				Off: rapid.Uint64Range(0, 3*devmem.PageSize).Draw(t, "off"),
				Len: rapid.OneOf(rapid.Uint64Range(1, 20), rapid.Uint64Range(1, 3*devmem.PageSize)).Draw(t, "len"),
			})
		}
		for len(ranges) > 0 {
			k := group(ranges, mss)
			if k < 1 {
				t.Fatal("no progress")
			}
			var starts []int // offsets at which pieces begin
			end := 0
			for _, r := range ranges[:k] {
				for off, left := r.Off, r.Len; left > 0; {
					starts = append(starts, end)
					n := min(left, devmem.PageSize-off%devmem.PageSize)
					end += int(n)
					off, left = off+n, left-n
				}
			}
			for i := range starts { // segments that begin one byte before piece i
				if n := pieces(starts, max(starts[i]-1, 0), mss); n > maxPieces {
					t.Fatalf("%d pieces in the %d bytes from %d: pieces begin at %v", n, mss, starts[i], starts)
				}
			}
			ranges = ranges[k:]
		}
	})
}

func pieces(starts []int, from, n int) (count int) {
	for i, a := range starts {
		if a < from+n && (i+1 == len(starts) || starts[i+1] > from) {
			count++
		}
	}
	return count
}

func TestCut(t *testing.T) {
	iov := []iovec{{100, 10}, {200, 5}, {300, 1}}
	for _, c := range []struct {
		n    int
		want []iovec
	}{{0, iov}, {3, []iovec{{103, 7}, {200, 5}, {300, 1}}}, {10, iov[1:]}, {12, []iovec{{202, 3}, {300, 1}}}, {16, nil}} {
		if got := cut(slices.Clone(iov), c.n); !slices.Equal(got, c.want) {
			t.Errorf("%d: %v", c.n, got)
		}
	}
}

// The kernel may complete the sendmsgs of a call in any order.
func TestSendLog(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := sendLog{base: rapid.SampledFrom([]uint32{0, math.MaxUint32 - 3}).Draw(t, "base")}
		var b binding
		next := l.base
		parts := map[uint32]int{} // number of incomplete sendmsgs, by number of the call
		callOf := map[uint32]uint32{}
		var open []uint32 // numbers of the sendmsgs that are not complete
		var calls uint32
		got := map[uint32]bool{}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			switch rapid.IntRange(0, 2).Draw(t, "what") {
			case 0:
				var call *sendCall
				k := rapid.IntRange(0, 3).Draw(t, "sendmsgs")
				for range k {
					call = l.queued(call, &b)
					callOf[next] = calls
					open = append(open, next)
					next++
				}
				l.end(call)
				if k > 0 {
					parts[calls] = k
					calls++
				}
			case 1:
				if len(open) == 0 {
					break
				}
				i := rapid.IntRange(0, len(open)-1).Draw(t, "first")
				j := i
				for j+1 < len(open) && open[j+1] == open[j]+1 && rapid.Bool().Draw(t, "more") {
					j++
				}
				l.completed(seqRange{open[i], open[j]})
				if rapid.Bool().Draw(t, "again") {
					l.completed(seqRange{open[i], open[j]})
				}
				for _, s := range open[i : j+1] {
					parts[callOf[s]]--
				}
				open = slices.Delete(open, i, j+1)
			case 2:
				r, ok, none := l.take()
				if none != (l.open == 0 && !ok) || ok && r.lo > r.hi {
					t.Fatalf("%+v, %v, %v", r, ok, none)
				}
				for n := r.lo; ok && n <= r.hi; n++ {
					if got[n] || parts[n] != 0 {
						t.Fatalf("call %d: %d parts, got %v", n, parts[n], got[n])
					}
					got[n] = true
				}
			}
			want := 0
			for n := range calls {
				if parts[n] > 0 {
					want++
				}
			}
			if l.open != want || int(b.sends.Load()) != want {
				t.Fatalf("%d calls open, binding has %d, want %d", l.open, b.sends.Load(), want)
			}
			for i := 1; i < len(l.done); i++ {
				if l.done[i].lo <= l.done[i-1].hi+1 {
					t.Fatalf("%v", l.done)
				}
			}
		}
		l.completed(seqRange{next + 5, next + 1<<20}) // never sent
		l.abandon()
		if l.open != 0 || b.sends.Load() != 0 {
			t.Fatalf("%d, %d after the end", l.open, b.sends.Load())
		}
	})
}

// The connection may be closed while a call waits for room for its next sendmsg.
func TestAbandonedCallIsCountedOnce(t *testing.T) {
	var l sendLog
	b := new(binding)
	l.mu.Lock()
	call := l.queued(nil, b)
	l.mu.Unlock()
	l.abandon()
	l.end(call)
	testkit.Equal(t, "open calls", l.open, 0)
	testkit.Equal(t, "sends of the binding", b.sends.Load(), 0)
}
