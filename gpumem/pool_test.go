package gpumem

import (
	"fmt"
	"slices"
	"syscall"
	"testing"

	"pgregory.net/rapid"
	"vnic.dev/vnic/internal/testkit"
)

func newPool(gpu int, off, size uint64) *Pool {
	p, err := NewPool(gpu, off, size, func(int) {}, func() {})
	if err != nil {
		panic(err)
	}
	return p
}

// testPool returns a pool of n pages that has received data in all of them, and the pieces.
func testPool(n int) (*Pool, []Piece) {
	p := newPool(0, 1<<20, uint64(n)*PageSize)
	offs := make([]uint64, n)
	p.TakePages(1, offs)
	ranges := make([]Range, n)
	for i, off := range offs {
		ranges[i] = Range{Off: off, Len: PageSize}
	}
	pieces, ok := p.Receive(nil, ranges, n*PageSize)
	if !ok {
		panic("pages that the pool gave are not its own")
	}
	return p, pieces
}

// Invariant: gpumem: The lowest free token is issued first, and a page is free after its last
// reference.
func TestTokensAreLowestFirst(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, pieces := testPool(40)
		var tk Tokens
		held := map[uint32]uint32{}
		t.Repeat(map[string]func(*rapid.T){
			"": func(t *rapid.T) {
				pages := map[uint32]bool{}
				for _, pg := range held {
					pages[pg] = true
				}
				if s := p.Stats(); s.Held != len(pages) || s.Queued != len(pieces)-len(pages) {
					t.Fatalf("%+v; want %d held of %d", s, len(pages), len(pieces))
				}
			},
			"issue": func(t *rapid.T) {
				pg := rapid.Uint32Range(0, 39).Draw(t, "page")
				var got [1]uint32
				ok := tk.Issue(p, []uint32{pg}, got[:])
				want := uint32(1)
				for {
					if _, taken := held[want]; !taken {
						break
					}
					want++
				}
				if !ok || got[0] != want {
					t.Fatalf("token %d, %v; want %d", got, ok, want)
				}
				held[want] = pg
			},
			"put": func(t *rapid.T) {
				start := rapid.Uint32Range(0, 200).Draw(t, "start")
				if rapid.Bool().Draw(t, "high") {
					start = -start
				}
				count := rapid.Uint32Range(0, 100).Draw(t, "count")
				want := 0
				for i := range count {
					if _, ok := held[start+i]; ok {
						delete(held, start+i)
						want++
					}
				}
				if got := tk.Put([]TokenRange{{Start: start, Count: count}}, 1<<30); got != want {
					t.Fatalf("put %d+%d: %d, want %d", start, count, got, want)
				}
			},
		})
		tk.Close()
		p.Release(pieces)
		if s := p.Stats(); s != (PoolStats{Pages: 40, Free: 40}) {
			t.Fatalf("at the end: %+v", s)
		}
		if tk.Issue(p, []uint32{0}, make([]uint32, 1)) {
			t.Fatal("a token after close")
		}
	})
}

// Invariant: gpumem: The pool accepts from the NIC only pages that the NIC has.
func TestPoolRefusesPagesThatWereNotPosted(t *testing.T) {
	p := newPool(2, 1<<20, 64*PageSize)
	var offs [4]uint64
	p.TakePages(1, offs[:])
	good := Range{GPU: 2, Off: offs[0], Len: 100}
	for name, bad := range map[string]Range{
		"below":         {GPU: 2, Off: 0, Len: 1},
		"above":         {GPU: 2, Off: 1<<20 + 64*PageSize, Len: 1},
		"far above":     {GPU: 2, Off: ^uint64(0), Len: 1},
		"not posted":    {GPU: 2, Off: 1<<20 + 60*PageSize, Len: 1},
		"other gpu":     {GPU: 1, Off: offs[1], Len: 1},
		"too long":      {GPU: 2, Off: offs[1], Len: PageSize + 1},
		"over the end":  {GPU: 2, Off: offs[1] + 1, Len: PageSize},
		"the same page": good,
	} {
		t.Run(name, func(t *testing.T) {
			if _, ok := p.Receive(nil, []Range{good, bad}, 101); ok {
				t.Error("taken")
			}
			if s := p.Stats(); s != (PoolStats{Pages: 64, Free: 60, Posted: 4}) {
				t.Errorf("%+v", s)
			}
		})
	}
	if _, ok := p.Receive(nil, []Range{good}, 101); ok {
		t.Error("fewer bytes than the headers say are taken")
	}
	pieces, ok := p.Receive(nil, []Range{good}, 99)
	if !ok || pieces[0].Len != 99 {
		t.Errorf("padding: %+v, %v", pieces, ok)
	}
	p.Discard([]Range{good, {GPU: 2, Off: offs[1], Len: 1}})
	if s := p.Stats(); s != (PoolStats{Pages: 64, Free: 61, Posted: 2, Queued: 1}) {
		t.Errorf("discard of a page in use and one posted: %+v", s)
	}
}

func TestPoolIsWholePages(t *testing.T) {
	for _, bad := range [][2]uint64{{0, 0}, {1, PageSize}, {0, PageSize + 1}, {0, 1 << 50}} {
		wantErr(t, fmt.Sprint(bad), errOf(NewPool(0, bad[0], bad[1], nil, nil)), syscall.EINVAL)
	}
}

// A pool calls refill once for a queue that got too few pages, when a page is free.
//
// Invariant: gpumem: The pool accepts from the NIC only pages that the NIC has.
func TestDryPoolTells(t *testing.T) {
	var refilled []int
	p := testkit.Must(NewPool(0, 0, 2*PageSize, func(q int) { refilled = append(refilled, q) }, func() {}))(t)
	offs := make([]uint64, 3)
	testkit.Equal(t, "pages", p.TakePages(7, offs), 2)
	pieces, ok := p.Receive(nil, []Range{{Off: offs[0], Len: 10}, {Off: offs[1], Len: 10}}, 20)
	if !ok {
		t.Fatal("not received")
	}
	var tk Tokens
	var tokens [3]uint32
	tk.Issue(p, []uint32{pieces[0].Page, pieces[0].Page, pieces[1].Page}, tokens[:]) // two tokens of the first page
	p.Release(pieces)
	for i, want := range []int{0, 1, 1} {
		if tk.Put([]TokenRange{{Start: tokens[i], Count: 1}}, 1); len(refilled) != want {
			t.Fatalf("after token %d: told %v", tokens[i], refilled)
		}
	}
	if !slices.Equal(refilled, []int{7}) || p.Stats() != (PoolStats{Pages: 2, Free: 2}) {
		t.Fatalf("told %v, %+v", refilled, p.Stats())
	}
}

// Invariant: stack: A binding is not done while the NIC may write to its pages.
func TestClosedPoolEndsWithItsLastPage(t *testing.T) {
	ended := 0
	p := testkit.Must(NewPool(0, 0, 4*PageSize, func(int) { t.Error("refill of a closed pool") }, func() { ended++ }))(t)
	offs := make([]uint64, 5)
	p.TakePages(1, offs)
	pieces, _ := p.Receive(nil, []Range{{Off: offs[0], Len: 10}}, 10)
	var tk Tokens
	tk.Issue(p, []uint32{pieces[0].Page}, make([]uint32, 1))
	p.Release(pieces)
	p.Close(false) // the device still uses the queues
	p.ReturnPages(1, offs[1:2])
	testkit.Equal(t, "pages of a closed pool", p.TakePages(1, offs), 0)
	if s := p.Stats(); ended != 0 || s != (PoolStats{Pages: 4, Free: 1, Posted: 2, Held: 1}) {
		t.Fatalf("ended %d times, %+v", ended, s)
	}
	p.Close(true)
	if s := p.Stats(); ended != 0 || s != (PoolStats{Pages: 4, Free: 3, Held: 1}) {
		t.Fatalf("ended %d times, %+v", ended, s)
	}
	tk.Close()
	if p.Close(true); ended != 1 {
		t.Fatalf("ended %d times", ended)
	}
}

// As pages come into use, the supply goes from OK to low, then to empty.
func TestSupply(t *testing.T) {
	p := newPool(0, 0, 100*PageSize)
	testkit.Equal(t, "pages", p.Pages(), 100)
	offs := make([]uint64, 100)
	p.TakePages(1, offs)
	testkit.Equal(t, "supply: posted pages are spare", p.Supply(0), SupplyOK)
	var tk Tokens
	for i, off := range offs {
		for _, frame := range []int{1, FramePages} { // number of pages of a frame not yet received
			want := SupplyOK
			if spare := 100 - i - frame; spare < segmentPages {
				want = SupplyEmpty
			} else if spare < 2*FramePages {
				want = SupplyLow
			}
			if got := p.Supply(frame); got != want {
				t.Fatalf("%d pages in use, a frame of %d: %v, want %v", i, frame, got, want)
			}
		}
		pieces, _ := p.Receive(nil, []Range{{Off: off, Len: 1}}, 1)
		if i%2 == 0 { // so few pages without tokens do not make the supply low
			tk.Issue(p, []uint32{pieces[0].Page}, make([]uint32, 1))
		}
	}
	testkit.Equal(t, "tokens of its pages", tk.Held(p), 50)
	testkit.Equal(t, "tokens of another pool's pages", tk.Held(newPool(0, 0, 64*PageSize)), 0)
}

func BenchmarkPool(b *testing.B) {
	p := newPool(0, 0, 1<<30)
	offs, ranges, pages, tokens := make([]uint64, 16), make([]Range, 16), make([]uint32, 16), make([]uint32, 16)
	var pieces []Piece
	var tk Tokens
	b.ReportAllocs()
	for b.Loop() {
		p.TakePages(1, offs)
		for i, off := range offs {
			ranges[i] = Range{Off: off, Len: PageSize}
		}
		pieces, _ = p.Receive(pieces, ranges, 16*PageSize)
		for i, pc := range pieces {
			pages[i] = pc.Page
		}
		tk.Issue(p, pages, tokens)
		p.Release(pieces)
		tk.Put([]TokenRange{{1, 16}}, 16)
	}
}
