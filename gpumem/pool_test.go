package gpumem

import (
	"errors"
	"slices"
	"sync"
	"syscall"
	"testing"

	"pgregory.net/rapid"
)

func newPool(t interface{ Fatal(...any) }, off, size uint64) *Pool {
	p, err := NewPool(off, size)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestPagesAreTakenLowestFirst(t *testing.T) {
	const off = 1 << 20
	p := newPool(t, off, 5000*PageSize)
	dst := make([]uint64, 6000)
	if n := p.Take(dst[:10]); n != 10 || dst[0] != off || dst[9] != off+9*PageSize {
		t.Fatal(n, dst[:10])
	}
	if err := p.Put([]uint64{off + 7*PageSize, off + 2*PageSize, off + 4*PageSize}); err != nil {
		t.Fatal(err)
	}
	if n := p.Take(dst[:4]); n != 4 || !slices.Equal(dst[:4], []uint64{off + 2*PageSize, off + 4*PageSize, off + 7*PageSize, off + 10*PageSize}) {
		t.Fatal(n, dst[:4])
	}
	if n := p.Take(dst); n != 5000-11 {
		t.Fatal(n)
	}
	if s := p.Stats(); s != (PoolStats{Pages: 5000, Posted: 5000, Dry: 1}) {
		t.Fatalf("%+v", s)
	}
	if n := p.Take(dst); n != 0 {
		t.Fatal(n)
	}
	for _, bad := range [][2]uint64{{0, 0}, {1, 4096}, {0, 4097}} {
		if _, err := NewPool(bad[0], bad[1]); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%v: %v", bad, err)
		}
	}
}

// TestTwoFragsOfOnePage: the page is free after both tokens, and a peek's.
func TestTwoFragsOfOnePage(t *testing.T) {
	p := newPool(t, 0, 2*PageSize)
	var told int
	p.SetNotify(func() { told++; p.Stats() })
	pages := make([]uint64, 3)
	if n := p.Take(pages); n != 2 {
		t.Fatal(n)
	}
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	bad := func(err error) {
		t.Helper()
		if !errors.Is(err, syscall.EINVAL) && !errors.Is(err, syscall.EFAULT) {
			t.Fatal(err)
		}
	}
	bad(p.Hold(0)) // posted: the NIC's
	bad(p.Drop(0))
	ok(p.Filled(0))
	bad(p.Filled(0))
	bad(p.Put([]uint64{0}))
	ok(p.Hold(2048))
	tok := NewTokens(true)
	for want := range uint32(3) {
		id, err := tok.Issue(p, uint64(want)*1000)
		if err != nil || id != want+1 {
			t.Fatal(id, err)
		}
	}
	if _, err := tok.Issue(p, PageSize); err == nil || tok.Len() != 3 {
		t.Fatal("a token for a page that the NIC has")
	}
	ok(p.Drop(100))
	ok(p.Drop(100))
	bad(p.Drop(100)) // what is left is the user's
	if s := p.Stats(); s.Held != 1 || s.Queued != 0 || s.Posted != 1 || s.Free != 0 || told != 0 {
		t.Fatalf("%+v, told %d times", s, told)
	}
	for i := range uint32(3) {
		if n, err := tok.DontNeed([]TokenRange{{Start: i + 1, Count: 1}}); n != 1 || err != nil {
			t.Fatal(n, err)
		}
	}
	if s := p.Stats(); s.Free != 1 || s.Held != 0 || told != 1 {
		t.Fatalf("%+v, told %d times", s, told)
	}
	ok(p.Put([]uint64{PageSize}))
	if told != 1 {
		t.Fatalf("told %d times", told)
	}
	bad(p.Put([]uint64{PageSize}))
	bad(p.Put([]uint64{2 * PageSize}))
	bad(p.Drop(1 << 40))
}

func TestTokenNumbers(t *testing.T) {
	p := newPool(t, 0, 64*PageSize)
	pages := make([]uint64, 64)
	p.Take(pages)
	for _, off := range pages {
		if err := p.Filled(off); err != nil {
			t.Fatal(err)
		}
	}
	issue := func(tok *Tokens) uint32 {
		id, err := tok.Issue(p, 0)
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	strict := NewTokens(true)
	for want := uint32(1); want <= 300; want++ {
		if id := issue(strict); id != want {
			t.Fatal(id)
		}
	}
	if n, err := strict.DontNeed([]TokenRange{{200, 3}, {7, 1}, {500, 9}, {0, 1}}); n != 4 || err != nil {
		t.Fatal(n, err)
	}
	for _, want := range []uint32{7, 200, 201, 202, 301} { // lowest first, at once
		if id := issue(strict); id != want {
			t.Fatal(id, want)
		}
	}
	if n := strict.Close(); n != 301 || strict.Len() != 0 {
		t.Fatal(n)
	}

	tagged := NewTokens(false)
	a := issue(tagged)
	if n, _ := tagged.DontNeed([]TokenRange{{a, 1}}); n != 1 {
		t.Fatal(n)
	}
	b := issue(tagged)
	if n, _ := tagged.DontNeed([]TokenRange{{a, 1}}); n != 0 || a == b || tagged.Len() != 1 {
		t.Fatalf("a token returned twice frees another: %#x %#x", a, b)
	}
	if n := tagged.Close(); n != 1 {
		t.Fatal(n)
	}
	if s := p.Stats(); s.Held != 0 || s.Queued != 64 {
		t.Fatalf("%+v", s)
	}
}

func TestDontNeedLimits(t *testing.T) {
	p := newPool(t, 0, PageSize)
	p.Take(make([]uint64, 1))
	if err := p.Filled(0); err != nil {
		t.Fatal(err)
	}
	tok := NewTokens(true)
	for range 2000 {
		if _, err := tok.Issue(p, 0); err != nil {
			t.Fatal(err)
		}
	}
	for _, ranges := range [][]TokenRange{nil, make([]TokenRange, MaxTokenRanges+1)} {
		if _, err := tok.DontNeed(ranges); !errors.Is(err, syscall.EINVAL) {
			t.Fatal(err)
		}
	}
	// Unknown ones count: 24 of these, then 1000 that are out.
	if n, err := tok.DontNeed([]TokenRange{{5000, 24}, {1, 1<<32 - 1}}); n != 1000 || err != nil || tok.Len() != 1000 {
		t.Fatal(n, err, tok.Len())
	}
	// A range wraps: 2^32-1, 0, and the first 1022, of which the first 1000 have been returned.
	if n, err := tok.DontNeed([]TokenRange{{1<<32 - 1, 1<<32 - 1}}); n != 22 || err != nil {
		t.Fatal(n, err)
	}
	if n := tok.Close(); n != 978 || tok.Len() != 0 {
		t.Fatal(n)
	}
}

// TestPoolKeepsCount plays a pool against maps.
func TestPoolKeepsCount(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const pages = 70
		p := newPool(t, PageSize, pages*PageSize)
		strict := rapid.Bool().Draw(t, "strict")
		tok := NewTokens(strict)
		posted, refs, users := map[uint64]bool{}, map[uint64]int{}, map[uint64]int{}
		tokens := map[uint32]uint64{}
		any := func() uint64 { return uint64(rapid.IntRange(0, pages+1).Draw(t, "page")) * PageSize }
		for range rapid.IntRange(0, 200).Draw(t, "steps") {
			off := any()
			switch rapid.IntRange(0, 6).Draw(t, "do") {
			case 0:
				dst := make([]uint64, rapid.IntRange(0, 20).Draw(t, "n"))
				n := p.Take(dst)
				if want := min(len(dst), pages-len(posted)-len(refs)); n != want {
					t.Fatalf("took %d, want %d", n, want)
				}
				for _, o := range dst[:n] {
					if posted[o] || refs[o] > 0 {
						t.Fatalf("took %#x twice", o)
					}
					posted[o] = true
				}
			case 1:
				if err := p.Put([]uint64{off}); (err == nil) != posted[off] {
					t.Fatal(err)
				}
				delete(posted, off)
			case 2:
				if err := p.Filled(off); (err == nil) != posted[off] {
					t.Fatal(err)
				}
				if posted[off] {
					delete(posted, off)
					refs[off] = 1
				}
			case 3:
				if err := p.Hold(off); (err == nil) != (refs[off] > 0) {
					t.Fatal(err)
				} else if err == nil {
					refs[off]++
				}
			case 4:
				if err := p.Drop(off); (err == nil) != (refs[off] > users[off]) {
					t.Fatal(err)
				} else if err == nil {
					refs[off]--
				}
			case 5:
				id, err := tok.Issue(p, off)
				if (err == nil) != (refs[off] > 0) {
					t.Fatal(err)
				}
				if err == nil {
					if _, ok := tokens[id]; ok || strict && id == 0 {
						t.Fatalf("token %d twice", id)
					}
					for low := uint32(1); strict && low < id; low++ {
						if _, ok := tokens[low]; !ok {
							t.Fatalf("token %d, but %d is free", id, low)
						}
					}
					tokens[id] = off
					refs[off]++
					users[off]++
				}
			case 6:
				id := uint32(rapid.IntRange(0, 30).Draw(t, "token"))
				if len(tokens) > 0 && rapid.Bool().Draw(t, "known") {
					var ids []uint32
					for i := range tokens {
						ids = append(ids, i)
					}
					slices.Sort(ids)
					id = rapid.SampledFrom(ids).Draw(t, "id")
				}
				o, known := tokens[id]
				if n, err := tok.DontNeed([]TokenRange{{id, 1}}); err != nil || (n == 1) != known {
					t.Fatal(n, err)
				}
				if known {
					refs[o]--
					users[o]--
					delete(tokens, id)
				}
			}
			for _, m := range []map[uint64]int{refs, users} {
				for o, n := range m {
					if n == 0 {
						delete(m, o)
					}
				}
			}
			s := p.Stats()
			want := PoolStats{Pages: pages, Posted: len(posted), Held: len(users), Queued: len(refs) - len(users), Free: pages - len(posted) - len(refs), Dry: s.Dry}
			if s != want || tok.Len() != len(tokens) {
				t.Fatalf("%+v, want %+v", s, want)
			}
		}
	})
}

// TestDryPoolTells: a taker that found nothing hears of every first page after it.
func TestDryPoolTells(t *testing.T) {
	p := newPool(t, 0, 4*PageSize)
	free := make(chan struct{}, 1)
	p.SetNotify(func() {
		select {
		case free <- struct{}{}:
		default:
		}
	})
	taken := make(chan uint64, 4)
	var wg sync.WaitGroup
	wg.Go(func() { // the NIC and the user
		for off := range taken {
			if err := errors.Join(p.Filled(off), p.Drop(off)); err != nil {
				t.Error(err)
			}
		}
	})
	dst := make([]uint64, 3)
	for got := 0; got < 10000; {
		n := p.Take(dst)
		for _, off := range dst[:n] {
			taken <- off
		}
		if got += n; n < len(dst) && got < 10000 {
			<-free
		}
	}
	close(taken)
	wg.Wait()
	if s := p.Stats(); s.Free != 4 {
		t.Fatalf("%+v", s)
	}
}

func BenchmarkPool(b *testing.B) {
	p := newPool(b, 0, 1<<30)
	tok := NewTokens(true)
	dst := make([]uint64, 64)
	b.ReportAllocs()
	for b.Loop() {
		n := p.Take(dst)
		for _, off := range dst[:n] {
			_ = p.Filled(off)
			_, _ = tok.Issue(p, off)
			_ = p.Drop(off)
		}
		_, _ = tok.DontNeed([]TokenRange{{1, 64}})
	}
}
