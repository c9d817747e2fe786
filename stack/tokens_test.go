package stack

import (
	"testing"

	"pgregory.net/rapid"
	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/driver"
)

// testPool is a pool of n pages, all of them received as a frame.
func testPool(n int) (*pool, []piece) {
	p := newPool(0, 1<<20, uint64(n)*pageSize)
	p.refill, p.empty = func(int) {}, func() {}
	offs := make([]uint64, n)
	p.TakePages(1, offs)
	ranges := make([]driver.Range, n)
	for i, off := range offs {
		ranges[i] = driver.Range{Off: off, Len: pageSize}
	}
	pieces, ok := p.receive(nil, ranges, n*pageSize)
	if !ok {
		panic("pages that the pool gave are not its own")
	}
	return p, pieces
}

// Tokens against Linux's rule: the lowest free number, and nothing for what is not held.
func TestTokensAreLowestFirst(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, pieces := testPool(40)
		var tk tokens
		held := map[uint32]uint32{}
		t.Repeat(map[string]func(*rapid.T){
			"": func(t *rapid.T) {
				pages := map[uint32]bool{}
				for _, pg := range held {
					pages[pg] = true
				}
				if _, _, queued, h := p.counts(); h != len(pages) || queued != len(pieces)-len(pages) {
					t.Fatalf("%d pages held, %d queued; want %d of %d", h, queued, len(pages), len(pieces))
				}
			},
			"issue": func(t *rapid.T) {
				pg := rapid.Uint32Range(0, 39).Draw(t, "page")
				var got [1]uint32
				ok := tk.issue(p, []uint32{pg}, got[:])
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
				if got := tk.put([]devmem.TokenRange{{Start: start, Count: count}}, 1<<30); got != want {
					t.Fatalf("put %d+%d: %d, want %d", start, count, got, want)
				}
			},
		})
		tk.close()
		p.release(pieces)
		if free, posted, queued, h := p.counts(); free != 40 || posted+queued+h != 0 {
			t.Fatalf("at the end: %d free, %d posted, %d queued, %d held", free, posted, queued, h)
		}
		if tk.issue(p, []uint32{0}, make([]uint32, 1)) {
			t.Fatal("a token after close")
		}
	})
}

// The device is not trusted: only pages that it has are taken from it.
func TestPoolRefusesPagesThatWereNotPosted(t *testing.T) {
	p := newPool(2, 1<<20, 64*pageSize)
	p.refill, p.empty = func(int) {}, func() {}
	var offs [4]uint64
	p.TakePages(1, offs[:])
	good := driver.Range{GPU: 2, Off: offs[0], Len: 100}
	for name, bad := range map[string]driver.Range{
		"below":         {GPU: 2, Off: 0, Len: 1},
		"above":         {GPU: 2, Off: 1<<20 + 64*pageSize, Len: 1},
		"far above":     {GPU: 2, Off: ^uint64(0), Len: 1},
		"not posted":    {GPU: 2, Off: 1<<20 + 60*pageSize, Len: 1},
		"other gpu":     {GPU: 1, Off: offs[1], Len: 1},
		"too long":      {GPU: 2, Off: offs[1], Len: pageSize + 1},
		"over the end":  {GPU: 2, Off: offs[1] + 1, Len: pageSize},
		"the same page": good,
	} {
		t.Run(name, func(t *testing.T) {
			if _, ok := p.receive(nil, []driver.Range{good, bad}, 101); ok {
				t.Error("taken")
			}
			if free, posted, queued, _ := p.counts(); free != 60 || posted != 4 || queued != 0 {
				t.Errorf("%d free, %d posted, %d queued", free, posted, queued)
			}
		})
	}
	if _, ok := p.receive(nil, []driver.Range{good}, 101); ok {
		t.Error("fewer bytes than the headers say are taken")
	}
	pieces, ok := p.receive(nil, []driver.Range{good}, 99)
	if !ok || pieces[0].len != 99 {
		t.Errorf("padding: %+v, %v", pieces, ok)
	}
	p.discard([]driver.Range{good, {GPU: 2, Off: offs[1], Len: 1}})
	if free, posted, queued, _ := p.counts(); free != 61 || posted != 2 || queued != 1 {
		t.Errorf("discard of a page in use and one posted: %d free, %d posted, %d queued", free, posted, queued)
	}
}
