package flows

import (
	"sync"
	"testing"

	"vnic.dev/vnic/internal/testkit"
)

// count counts a packet of each of flow(from) to flow(from+n-1), and calls Flush after each.
func count(s *Shard, from, n uint32) {
	for i := range n {
		s.At(flow(from+i)).Packets++
		s.Flush()
	}
}

// have returns how many of flow(from) to flow(from+n-1) have a row with this number of packets in s.
func have(s *Shard, from, n uint32, packets uint64) (found int) {
	list, _ := s.Read(nil)
	for _, r := range list {
		for i := range n {
			if r.Flow == *flow(from + i) && r.Packets == packets {
				found++
			}
		}
	}
	return found
}

// Invariant: flows: Each queue gets its equal share of the rows in each direction, whatever flows
// other queues had; when it gives up rows, the flows that moved most keep theirs.
func TestAFloodLeavesRoomForOthers(t *testing.T) {
	const shards, flood, real, rounds = 16, 1_100, 20, 200
	for _, order := range []string{"before", "meanwhile"} {
		t.Run(order, func(t *testing.T) {
			tb := New(DefaultRows, shards)
			for range rounds {
				count(tb.Shard(0), 1<<20, 1) // the most used flow of shard 0, which is flooded
			}
			if order == "before" {
				count(tb.Shard(0), 1<<24, flood)
			}
			for round := range uint32(rounds) {
				if order == "meanwhile" {
					count(tb.Shard(0), 1<<24+round*10, 10)
				}
				for i := range shards - 1 {
					count(tb.Shard(i+1), uint32(i+1)<<16, real)
				}
			}
			for i := range shards - 1 {
				testkit.Equal(t, "flows that have all of their packets", have(tb.Shard(i+1), uint32(i+1)<<16, real, rounds), real)
				_, rest := tb.Shard(i + 1).Read(nil)
				testkit.Equal(t, "others", rest.Flows, uint64(0))
			}
			testkit.Equal(t, "the flow that moved most", have(tb.Shard(0), 1<<20, 1, rounds), 1)
			_, rest := rows(t, tb, shards)
			list, _ := tb.Shard(0).Read(nil)
			testkit.Equal(t, "packets of others", rest.Packets, func() uint64 {
				n := uint64(flood)
				if order == "meanwhile" {
					n = 10 * rounds
				}
				return n - uint64(len(list)-1)
			}())
		})
	}
}

// Once each of the flooded shards has its equal part of the blocks, none of them takes a block from another.
func TestBlocksComeToRest(t *testing.T) {
	tb := New(DefaultRows, 4)
	lost := func() (n int) {
		for _, s := range tb.shards {
			n += s.lost
		}
		return n
	}
	for i := range uint32(4) {
		count(tb.Shard(int(i)), i<<20, 2_000)
	}
	before, part := lost(), DefaultRows/blockRows/4
	if before > DefaultRows/blockRows {
		t.Errorf("%d blocks were taken", before)
	}
	for i := range uint32(4) {
		testkit.Equal(t, "blocks", len(tb.shards[i].blocks), part)
		count(tb.Shard(int(i)), (i+4)<<20, 2_000)
	}
	testkit.Equal(t, "taken since", lost()-before, 0)
	all, rest := rows(t, tb, 4)
	testkit.Equal(t, "packets", rest.Packets+uint64(len(all)), uint64(16_000))
}

// Every packet is counted, although shards take blocks from each other while readers read.
func TestBlocksChangeHandsUnderReaders(t *testing.T) {
	const shards, flood, packets = 8, 300, 400
	for range 3 {
		tb := New(256, shards)
		count(tb.Shard(0), 0, flood)
		var owners, readers sync.WaitGroup
		done := make(chan struct{})
		for i := range shards {
			owners.Go(func() {
				for n := range uint32(packets) {
					count(tb.Shard(i), n%40, 1)
				}
			})
			readers.Go(func() {
				var list []Row
				for reading := true; reading; {
					select {
					case <-done:
						reading = false
					default:
					}
					list, _ = tb.Shard(i).Read(list[:0])
				}
			})
		}
		owners.Wait()
		close(done)
		readers.Wait()
		sum := uint64(0)
		for i := range shards {
			list, rest := tb.Shard(i).Read(nil)
			sum += rest.Packets
			for _, r := range list {
				sum += r.Packets
			}
		}
		testkit.Equal(t, "packets", sum, uint64(flood+shards*packets))
	}
}

// A reader gets each packet once, although another shard takes a block meanwhile.
//
// Invariant: flows: Every packet is counted: rows and others together are all packets, whatever
// flows come in whatever order, and a flow has at most one row in a shard.
func TestBlockIsTakenWhileItsShardIsRead(t *testing.T) {
	const blocks = 7           // of shard 0; shard 1 has one
	for used := range blocks { // index of the least used block, which is taken
		for steps := range blocks + 1 {
			tb := New((blocks+1)*blockRows, 2)
			s := tb.Shard(0)
			for range 2 {
				count(s, 0, uint32(used)*blockRows)
				count(s, uint32(used+1)*blockRows, (blocks-1)*blockRows)
			}
			count(s, uint32(used)*blockRows, blockRows)
			before, rest := s.Read(nil)
			sum := func(rows []Row, rest Others) uint64 {
				n := rest.Packets
				for i := range rows {
					n += rows[i].Packets
				}
				return n
			}
			want := sum(before, rest)
			r := reading{s: s, lost: -1}
			for range steps {
				r.step()
			}
			lost := s.lost
			count(tb.Shard(1), 1<<20, 2*blockRows)
			testkit.Equal(t, "blocks taken", s.lost, lost+1)
			for r.step() {
			}
			testkit.Equal(t, "packets", sum(r.rows, r.rest), want)
		}
	}
}
