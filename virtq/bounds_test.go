package virtq

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/testkit"
)

const pagesIOVA = 1 << 32

// shatter gives the guest, besides its other memory, n adjacent regions of one page each, from pagesIOVA on.
func (g *guest) shatter(t testing.TB, n int) {
	t.Helper()
	maps := g.maps()
	for i := range uint64(n) {
		offset := i * pageLen
		maps = append(maps, dma.Map{IOVA: pagesIOVA + offset, Size: pageLen, FD: g.fd, FileOffset: offset % fileLen})
	}
	testkit.OK(t, g.space.Replace(maps))
}

// link makes the n descriptors from head on one chain.
func (r *raw) link(head, n int, d desc) {
	for i := head; i < head+n; i++ {
		d.flags, d.next = d.flags|flagNext, uint16(i+1)
		if i == head+n-1 {
			d.flags &^= flagNext
		}
		r.desc(i, d)
	}
}

func (r *raw) linkTable(iova uint64, n int, d desc) {
	for i := range n {
		d.flags, d.next = d.flags|flagNext, uint16(i+1)
		if i == n-1 {
			d.flags &^= flagNext
		}
		r.table(iova+uint64(i)*descLen, d)
	}
}

var largeConfig = Config{
	Size: MaxSize, Desc: ringIOVA, Avail: ringIOVA + 0x80000, Used: ringIOVA + 0xa0000, Indirect: true,
}

// TestTableMayBeLongerThanItsRing: Linux makes such tables.
func TestTableMayBeLongerThanItsRing(t *testing.T) {
	buf := desc{addr: endIOVA - 4096, len: 1}
	for _, size := range []uint16{1, 2, 4, 8} {
		for _, outside := range []int{0, 1} { // before the one that refers to the table
			if outside >= int(size) {
				continue
			}
			t.Run(fmt.Sprintf("ring of %d, %d before", size, outside), func(t *testing.T) {
				c := rawConfig
				c.Size = size
				r := newRaw(newGuest(t), c)
				q := r.device(t)
				if outside > 0 {
					r.link(0, 2, buf)
				}
				var chain Chain
				for i, n := range []int{2, 9, 3, MaxDescriptors - outside, 2} {
					r.linkTable(bufIOVA, n, buf)
					r.desc(outside, desc{addr: bufIOVA, len: uint32(n * descLen), flags: flagIndirect})
					r.entry(i, 0)
					r.idx(uint16(i + 1))
					r.g.inside(func() {
						peek(t, q, &chain)
						testkit.Equal(t, "bytes", chain.OutLen, uint32(n+outside))
						q.Commit(chain.Head, 0)
						q.Publish()
					})
				}
				testkit.Equal(t, "chains used", r.usedIdx(), 5)
			})
		}
	}
}

// TestChainCostIsBounded walks chains of a ring of 32768 over 8192 regions, around the limits of descriptors, tables
// and segments.
//
// Invariant: virtq: A chain has at most 1024 descriptors and 4096 segments, and a long list is freed when a
// short chain follows.
func TestChainCostIsBounded(t *testing.T) {
	const (
		tableIOVA = bufIOVA
		tooMany   = "a loop, or more than 1024 descriptors"
	)
	buf := desc{addr: endIOVA - 4096, len: 1}
	table := func(n int) desc { return desc{addr: tableIOVA, len: uint32(n * descLen), flags: flagIndirect} }
	pages := func(n int) desc { return desc{addr: pagesIOVA, len: uint32(n * pageLen)} }
	write := func(d desc) desc { d.flags |= flagWrite; return d }
	for _, c := range []struct {
		name   string
		make   func(r *raw)
		segs   int // segments of a good chain
		want   string
		target error
	}{
		{"most descriptors", func(r *raw) { r.link(0, MaxDescriptors, buf) }, MaxDescriptors, "", nil},
		{"one more", func(r *raw) { r.link(0, MaxDescriptors+1, buf) }, 0, "descriptor 1024: " + tooMany, nil},
		{"the whole ring", func(r *raw) { r.link(0, MaxSize, buf) }, 0, "descriptor 1024: " + tooMany, nil},
		{"empty buffers", func(r *raw) { r.link(0, MaxSize, desc{}) }, 0, "descriptor 1024: " + tooMany, nil},
		{"loop", func(r *raw) { r.desc(0, desc{flags: flagNext}) }, 0, "descriptor 0: a loop", nil},
		{"longest table", func(r *raw) {
			r.desc(0, table(MaxDescriptors))
			r.linkTable(tableIOVA, MaxDescriptors, buf)
		}, MaxDescriptors, "", nil},
		{"longer table, one descriptor used", func(r *raw) {
			r.desc(0, table(MaxDescriptors+1))
			r.table(tableIOVA, buf)
		}, 0, "indirect table of 1025 descriptors (at most 1024 are read)", nil},
		{"table of the ring's size", func(r *raw) {
			r.desc(0, table(MaxSize))
			r.linkTable(tableIOVA, MaxSize, buf)
		}, 0, "indirect table of 32768 descriptors", nil},
		{"descriptors and table", func(r *raw) {
			r.link(0, 2, buf)
			r.desc(1, table(MaxDescriptors))
			r.linkTable(tableIOVA, MaxDescriptors, buf)
		}, 0, "descriptor 1023: " + tooMany, nil},
		{"most segments", func(r *raw) { r.desc(0, pages(MaxSegments)) }, MaxSegments, "", nil},
		{"one more segment", func(r *raw) { r.desc(0, pages(MaxSegments+1)) }, 0,
			"head 0: descriptor 0: buffer at 0x100000000", dma.ErrScattered},
		{"most segments, written", func(r *raw) { r.desc(0, write(pages(MaxSegments))) }, MaxSegments, "", nil},
		{"one more segment, written", func(r *raw) { r.desc(0, write(pages(MaxSegments+1))) }, 0,
			"descriptor 0: buffer", dma.ErrScattered},
		{"most segments, both ways", func(r *raw) {
			r.link(0, 2, pages(MaxSegments-1000))
			r.desc(1, write(pages(1000)))
		}, MaxSegments, "", nil},
		{"one more segment, both ways", func(r *raw) {
			r.link(0, 2, pages(MaxSegments-1000))
			r.desc(1, write(pages(1001)))
		}, 0, "descriptor 1: buffer", dma.ErrScattered},
		{"memory bomb", func(r *raw) { // 8.4 million segments, 201 MB, if all were made
			r.desc(0, table(MaxDescriptors))
			r.linkTable(tableIOVA, MaxDescriptors, pages(8191))
		}, 0, "descriptor 0: buffer", dma.ErrScattered},
		{"memory bomb of many buffers", func(r *raw) {
			r.desc(0, table(MaxDescriptors))
			r.linkTable(tableIOVA, MaxDescriptors, pages(5))
		}, 0, "descriptor 819: buffer", dma.ErrScattered},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := newGuest(t)
			g.shatter(t, 8192)
			r := newRaw(g, largeConfig)
			c.make(r)
			r.desc(2000, desc{addr: endIOVA - 4096, len: 5})
			r.desc(2001, desc{addr: endIOVA - 4096, len: 6})
			r.offer(0, 2000, 2001)
			q := r.device(t)
			var chain Chain
			g.inside(func() {
				ok, err := q.Peek(&chain)
				if c.want == "" {
					if !ok || len(chain.Out)+len(chain.In) != c.segs {
						t.Fatalf("%v, %d and %d segments, %v", ok, len(chain.Out), len(chain.In), err)
					}
					if n := cap(chain.Out) + cap(chain.In); n > 2*MaxSegments {
						t.Errorf("room for %d segments", n)
					}
					if err := q.Load(0, &chain); err != nil || len(chain.Out)+len(chain.In) != c.segs {
						t.Errorf("again: %d and %d segments, %v", len(chain.Out), len(chain.In), err)
					}
					for n := range uint32(2) {
						if ok, err := q.Peek(&chain); !ok || chain.OutLen != 5+n {
							t.Errorf("the next: %v, %d bytes, %v", ok, chain.OutLen, err)
						}
					}
					if n := max(cap(chain.Out), cap(chain.In)); n > dma.KeepSegments {
						t.Errorf("room for %d segments is kept", n)
					}
					return
				}
				if !errors.Is(err, ErrBadChain) || !strings.Contains(err.Error(), c.want) ||
					c.target != nil && !errors.Is(err, c.target) {
					t.Errorf("got %v\nwant %q", err, c.want)
				}
				if cap(chain.Out)+cap(chain.In) != 0 {
					t.Errorf("room for %d and %d segments is kept", cap(chain.Out), cap(chain.In))
				}
			})
			newGuest(t).echo(t)
		})
	}
}

// TestReturningUnusedReadsNoDescriptor returns chains whose descriptors refer to unmapped memory.
//
// Invariant: virtq: Returning an unused chain costs the same for every chain.
func TestReturningUnusedReadsNoDescriptor(t *testing.T) {
	g := newGuest(t)
	r := newRaw(g, largeConfig)
	r.link(0, MaxSize, desc{addr: 1 << 60, len: 1}) // unmapped
	for i := range MaxSize {
		r.entry(i, uint16(i*3%MaxSize))
	}
	r.idx(MaxSize)
	q := r.device(t)
	testkit.Equal(t, "available", q.Available(), MaxSize)
	const piece = 256
	var staged int
	for n, err := piece, error(nil); n > 0; staged += n {
		if n, err = q.ReturnUnused(piece); err != nil || n != piece && n != 0 {
			t.Fatalf("%d of %d were returned: %v", n, piece, err)
		}
		testkit.Equal(t, "held", q.Held(), 0)
		if staged%1024 == 0 {
			q.Publish()
		}
	}
	q.Publish()
	testkit.Equal(t, "returned", staged, MaxSize)
	testkit.Equal(t, "used.idx", r.usedIdx(), MaxSize)
	for i := range MaxSize {
		if id, n := r.used(i); id != uint32(i*3%MaxSize) || n != 0 {
			t.Fatalf("used element %d: head %d, %d bytes", i, id, n)
		}
	}
	g.echo(t)
}

// TestReturningUnusedChecksTheRing: a broken ring stops the queue.
func TestReturningUnusedChecksTheRing(t *testing.T) {
	for _, c := range []struct {
		name     string
		make     func(r *raw)
		returned int
		want     string
	}{
		{"head outside", func(r *raw) { r.entry(2, 8) }, 1, "head 8: avail entry 2: ring of 8"},
		{"a head that is held", func(r *raw) { r.entry(2, 0) }, 1, "head 0: avail entry 2: made available again"},
		{"avail.idx too far", func(r *raw) { r.idx(9) }, 2, "avail.idx went from 3 to 9, ring of 8 with 3 in use"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRaw(newGuest(t), rawConfig)
			r.desc(0, desc{addr: bufIOVA, len: 1})
			r.offer(0, 1, 2)
			q := r.device(t)
			r.g.inside(func() { peek(t, q, new(Chain)) })
			c.make(r)
			n, err := q.ReturnUnused(8)
			if n != c.returned || !errors.Is(err, ErrBadChain) || !strings.Contains(err.Error(), c.want) || q.Err() != err {
				t.Errorf("%d returned, %v; want %d, %q", n, err, c.returned, c.want)
			}
			testkit.Equal(t, "held", q.Held(), 1)
			if n, again := q.ReturnUnused(8); n != 0 || again != err {
				t.Errorf("again: %d, %v", n, again)
			}
			testkit.Equal(t, "available", q.Available(), 0)
			r.g.echo(t)
		})
	}
}

func TestTrimLetsGoOfLongLists(t *testing.T) {
	for _, n := range []int{1, dma.KeepSegments, dma.KeepSegments + 1, MaxSegments} {
		c := Chain{Out: make([]dma.Segment, n), In: make([]dma.Segment, n)}
		c.Trim()
		want := n
		if n > dma.KeepSegments {
			want = 0
		}
		if len(c.Out) != 0 || len(c.In) != 0 || cap(c.Out) != want || cap(c.In) != want {
			t.Errorf("%d segments: room for %d and %d is kept, not %d", n, cap(c.Out), cap(c.In), want)
		}
	}
}

func TestDriverMakesNoChainThatDevicesRefuse(t *testing.T) {
	g := newGuest(t)
	dr, dev := g.ends(t, 2*MaxDescriptors, false, true)
	bufs := make([]Buf, MaxDescriptors+1)
	for i := range bufs {
		bufs[i] = Buf{Addr: bufIOVA + uint64(i), Len: 1}
	}
	const want = "chain of 1025 descriptors, ring of 2048, of which it may have 1024"
	err := dr.Add(bufs[:1000], bufs[1000:], 1)
	if !errors.Is(err, ErrBadBuf) || !strings.Contains(err.Error(), want) {
		t.Errorf("one too many: %v", err)
	}
	testkit.OK(t, dr.Add(bufs[:1000], bufs[1000:MaxDescriptors], 2))
	dr.Publish()
	var c Chain
	g.inside(func() {
		if ok, err := dev.Peek(&c); !ok || len(c.Out) != 1000 || len(c.In) != 24 {
			t.Errorf("%v, %d and %d segments, %v", ok, len(c.Out), len(c.In), err)
		}
	})
	g.echo(t)
}

// BenchmarkLongestChain measures Peek of chains of MaxDescriptors descriptors, with up to MaxSegments segments.
func BenchmarkLongestChain(b *testing.B) {
	for _, per := range []int{0, 1, MaxSegments / MaxDescriptors} { // segments per descriptor
		b.Run(fmt.Sprintf("%d segments", per*MaxDescriptors), func(b *testing.B) {
			g := newGuest(b)
			g.shatter(b, 8192)
			r := newRaw(g, largeConfig)
			r.desc(0, desc{addr: bufIOVA, len: MaxDescriptors * descLen, flags: flagIndirect})
			r.linkTable(bufIOVA, MaxDescriptors, desc{addr: pagesIOVA, len: uint32(per * pageLen)})
			r.offer(0)
			q := r.device(b)
			var c Chain
			defer g.space.Leave(g.space.Enter())
			for b.Loop() {
				if ok, err := q.Peek(&c); !ok {
					b.Fatal(err)
				}
				q.Rewind(1)
			}
		})
	}
}

func BenchmarkReturnUnused(b *testing.B) {
	r := newRaw(newGuest(b), Config{Size: 256, Desc: ringIOVA, Avail: ringIOVA + 0x1000, Used: ringIOVA + 0x2000})
	for i := range 256 {
		r.entry(i, uint16(i))
	}
	q := r.device(b)
	idx := uint16(0)
	for b.Loop() {
		idx += 256
		r.idx(idx)
		if n, err := q.ReturnUnused(256); n != 256 {
			b.Fatal(n, err)
		}
		q.Publish()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/256/float64(b.N), "ns/chain")
}
