package flows

import (
	"encoding/binary"
	"maps"
	"math/rand/v2"
	"sync"
	"testing"
	"unsafe"

	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/splitter"
)

func flow(n uint32) *splitter.Flow {
	f := &splitter.Flow{Proto: 6, SrcPort: 1, DstPort: 2}
	binary.BigEndian.PutUint32(f.Src[:], n)
	return f
}

// rows returns the rows of a table's shards by flow, and the sum of their Others. It fails if a flow has two rows.
func rows(t *testing.T, tb *Table, shards int) (map[splitter.Flow]Row, Others) {
	t.Helper()
	all := map[splitter.Flow]Row{}
	var rest Others
	for i := range shards {
		list, o := tb.Shard(i).Read(nil)
		for _, r := range list {
			if _, ok := all[r.Flow]; ok {
				t.Fatalf("%v has two rows", r.Flow)
			}
			all[r.Flow] = r
		}
		rest.Flows += o.Flows
		rest.add(&o.Counts)
	}
	return all, rest
}

// Invariant: flows: Every packet is counted: rows and others together are all packets, whatever
// flows come in whatever order, and a flow has at most one row in a shard.
func TestNothingIsLost(t *testing.T) {
	for _, hash := range []struct {
		name    string
		counter func(*splitter.Flow) uint64
	}{
		{"as it is", hashOf},
		{"all in one place", func(*splitter.Flow) uint64 { return ^uint64(0) }}, // wraps at the end of the index
		{"few places", func(f *splitter.Flow) uint64 { return uint64(f.Src[3]) % 5 * 13 }},
	} {
		t.Run(hash.name, func(t *testing.T) {
			was := hashOf
			hashOf = hash.counter
			t.Cleanup(func() { hashOf = was })
			const shards = 3
			tb := New(64, shards)
			rnd := rand.New(rand.NewPCG(1, 2))
			var want Counts
			last := map[splitter.Flow]uint64{}
			for range 10_000 {
				n := uint32(rnd.IntN(100) * rnd.IntN(4)) // flow 0 is frequent, the others are rare
				s := tb.Shard(int(n) % shards)
				a := s.At(flow(n))
				a.Packets++
				a.Device += uint64(n)
				a.Drops[n%NumReasons]++
				want.Packets++
				want.Device += uint64(n)
				want.Drops[n%NumReasons]++
				last[*flow(n)]++
				if rnd.IntN(7) == 0 {
					s.Flush()
				}
			}
			for i := range shards {
				tb.Shard(i).Flush()
			}
			all, rest := rows(t, tb, shards)
			got := rest.Counts
			for f, r := range all {
				got.add(&r.Counts)
				if r.Packets > last[f] {
					t.Errorf("%v has %d packets of %d", f, r.Packets, last[f])
				}
			}
			testkit.Equal(t, "all packets", got, want)
			if rest.Flows == 0 || len(all) != tb.Rows() {
				t.Errorf("%d flows lost their rows, %d of %d rows are in use: the test wants more flows", rest.Flows,
					len(all), tb.Rows())
			}
		})
	}
}

// Invariant: flows: A flood of 10^6 flows allocates no memory, and the flow that moves most keeps
// its row.
func TestFlood(t *testing.T) {
	tb := New(DefaultRows, 8)
	s := tb.Shard(3)
	big := flow(1 << 30)
	n, many := uint32(0), 1_000_000
	if testing.Short() {
		many = 50_000
	}
	allocs := testing.AllocsPerRun(1, func() {
		for range many {
			n++
			s.At(flow(n)).Packets++
			if n%256 == 0 {
				s.At(big).Packets += 3
				s.Flush()
			}
		}
	})
	if allocs > 0 {
		t.Errorf("%v allocations", allocs)
	}
	s.Flush()
	list, rest := s.Read(nil)
	if len(list) > tb.Rows() || rest.Flows < uint64(n)-uint64(tb.Rows()) {
		t.Errorf("%d rows, %d flows without", len(list), rest.Flows)
	}
	for _, r := range list {
		if r.Flow == *big {
			testkit.Equal(t, "packets of the flow that moves most", r.Packets, uint64(n/256*3))
			return
		}
	}
	t.Error("the flow that moves most has lost its row")
}

// Each shard has at least one block.
func TestEachShardHasABlock(t *testing.T) {
	tb := New(1, 4)
	testkit.Equal(t, "rows", tb.Rows(), 4*blockRows)
	for i := range uint32(100) {
		tb.Shard(0).At(flow(i)).Packets++
	}
	tb.Shard(3).At(flow(7)).Packets++
	tb.Shard(3).Flush()
	list, _ := tb.Shard(3).Read(nil)
	testkit.Equal(t, "rows of the last shard", len(list), 1)
}

// A row has at most the 248 bytes that doc.go says, and a Shard at most 192 bytes more than the 2 KiB there.
func TestSize(t *testing.T) {
	if n := unsafe.Sizeof(row{}); n > 248 {
		t.Errorf("a row has %d bytes", n)
	}
	if n := unsafe.Sizeof(Shard{}); n > 2<<10+192 {
		t.Errorf("a shard has %d bytes", n)
	}
}

func TestAgain(t *testing.T) {
	const syn, fin = splitter.SYN, splitter.FIN
	type seg struct {
		flags  uint8
		seq, n uint32
		flush  bool
	}
	for _, c := range []struct {
		name string
		segs []seg
		want uint64
	}{
		{"in order", []seg{{syn, 99, 0, false}, {0, 100, 10, false}, {0, 110, 10, true}, {0, 120, 10, true}}, 0},
		{"all again in a batch", []seg{{0, 100, 10, false}, {0, 100, 10, true}}, 10},
		{"all again in the next", []seg{{0, 100, 10, true}, {0, 100, 10, true}}, 10},
		{"in part", []seg{{0, 100, 10, true}, {0, 105, 10, true}}, 5},
		{"in part in a batch", []seg{{0, 100, 10, false}, {0, 105, 10, false}, {0, 115, 5, true}}, 5},
		{"wraps", []seg{{0, 1<<32 - 5, 10, true}, {0, 1<<32 - 5, 10, true}, {0, 5, 10, true}}, 10},
		{"acknowledgements are none", []seg{{0, 100, 10, true}, {0, 110, 0, true}, {0, 100, 0, true}}, 0},
		{"another connection", []seg{{0, 5000, 10, true}, {fin, 5010, 0, true}, {syn, 99, 0, true}, {0, 100, 10, true}}, 0},
		{"both in a batch", []seg{{0, 5000, 10, true}, {syn, 99, 0, false}, {0, 100, 10, true}}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := New(8, 1).Shard(0)
			for _, x := range c.segs {
				s.At(flow(1)).TCP(x.flags, x.seq, x.n)
				if x.flush {
					s.Flush()
				}
			}
			list, _ := s.Read(nil)
			testkit.Equal(t, "bytes again", list[0].Again, c.want)
		})
	}
}

func TestReadersAndOwners(t *testing.T) {
	tb := New(32, 2)
	var wg sync.WaitGroup
	for i := range 2 {
		wg.Go(func() {
			for n := range uint32(5_000) {
				tb.Shard(i).At(flow(n%50)).Packets++
				if n%10 == 9 {
					tb.Shard(i).Flush()
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	for reading := true; reading; {
		select {
		case <-done:
			reading = false
		default:
		}
		for i := range 2 {
			list, _ := tb.Shard(i).Read(nil)
			seen := map[splitter.Flow]bool{}
			for _, r := range list {
				seen[r.Flow] = true
			}
			_ = maps.Keys(seen)
		}
	}
	for i := range 2 {
		list, rest := tb.Shard(i).Read(nil)
		n := rest.Packets
		for _, r := range list {
			n += r.Packets
		}
		testkit.Equal(t, "packets", n, uint64(5_000))
	}
}

func BenchmarkBatch(b *testing.B) {
	for _, flows := range []uint32{1, 4, 64} {
		b.Run(map[uint32]string{1: "one flow", 4: "four flows", 64: "each another flow"}[flows], func(b *testing.B) {
			s := New(DefaultRows, 8).Shard(0)
			var list []*splitter.Flow
			for i := range flows {
				list = append(list, flow(i))
			}
			for b.Loop() {
				for i := range 64 {
					a := s.At(list[i%len(list)])
					a.Packets++
					a.TCP(0, uint32(i)*1448, 1448)
				}
				s.Flush()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/64, "ns/packet")
		})
	}
}
