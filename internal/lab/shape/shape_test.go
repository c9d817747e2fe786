package shape

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"
)

// drive sends packets over a route for a simulated second, and returns their number. After each wait it wakes late, by
// a random time below late.
func drive(r *Route, u Use, late time.Duration) (n int) {
	random := rand.New(rand.NewPCG(1, 2))
	end := int64(time.Second)
	for now := int64(1); now < end; n++ {
		if start := r.Take(now, u); start > 0 {
			if now = start; late > 0 {
				now += random.Int64N(int64(late))
			}
		}
	}
	return n
}

func TestRateIsKeptWhoeverIsLate(t *testing.T) {
	const rate, packet = 100e6, 64 << 10 // 655 microseconds a packet
	for _, c := range []struct {
		late        time.Duration
		least, most float64 // bounds of the measured rate, as parts of the edge's rate
	}{{0, 0.995, 1.01}, {time.Millisecond, 0.99, 1.01}, {4 * time.Millisecond, 0.99, 1.01},
		{50 * time.Millisecond, 0.1, 0.5}, // beyond the credit
	} {
		e := NewEdge("a", rate)
		r := NewRoute(NewClock(1), []Share{{Edge: e, Payload: 1}})
		share := float64(drive(r, Use{Payload: packet}, c.late)*packet) / rate
		if share < c.least || share > c.most {
			t.Errorf("late by %v: %v of the rate", c.late, share)
		}
	}
}

func TestScaleDividesRates(t *testing.T) {
	c := NewClock(100)
	r := NewRoute(c, []Share{{Edge: NewEdge("a", 100e6), Payload: 0.5}, {Edge: NewEdge("b", 1e12), Payload: 1, Header: 2}})
	if n := drive(r, Use{Payload: 10_000, Header: 50}, 0); n < 200 || n > 205 {
		t.Errorf("%d packets, not 200", n)
	}
	c.SetScale(0)
	if r.Take(1, Use{Payload: 1 << 30}) != 0 || r.Take(1, Use{}) != 0 {
		t.Error("a clock that is off makes packets wait")
	}
}

func TestSharesOfAnEdgeAddUp(t *testing.T) {
	e := NewEdge("a", 1e9)
	r := NewRoute(NewClock(1), []Share{{Edge: e, Payload: 1, Packet: 8}, {Edge: e, Header: 1, Buffer: 16},
		{Edge: e, Wire: 1}})
	r.Take(1, Use{Payload: 1000, Header: 54, Buffers: 2, Wire: 1078})
	if want := int64(1000 + 8 + 54 + 2*16 + 1078); e.Busy() != want || len(r.hops) != 1 {
		t.Errorf("busy for %d ns, not %d; %d edges", e.Busy(), want, len(r.hops))
	}
}

// Three senders use all of a common edge, and each sends at least a quarter of the packets, even if one is late.
func TestCommonEdgeIsSharedInTurn(t *testing.T) {
	clock, common := NewClock(1), NewEdge("common", 100e6)
	type sender struct {
		r       *Route
		next, n int64
		payload uint32
		late    int64
	}
	senders := []*sender{{payload: 20_000}, {payload: 20_000, late: int64(300 * time.Microsecond)}, {payload: 20_000}}
	for _, s := range senders {
		s.r = NewRoute(clock, []Share{{Edge: common, Payload: 1}, {Edge: NewEdge("own", 80e6), Payload: 1}})
	}
	for {
		s := slices.MinFunc(senders, func(a, b *sender) int { return cmp.Compare(a.next, b.next) })
		now := s.next
		if now >= int64(time.Second) {
			break
		}
		s.n++
		if s.next = s.r.Take(now, Use{Payload: s.payload}) + s.late; s.next < now {
			s.next = now
		}
	}
	sum := int64(0)
	for _, s := range senders {
		sum += s.n
	}
	for i, s := range senders {
		if sum < 4950 || sum > 5050 || s.n < sum/4 { // the late sender misses turns
			t.Errorf("sender %d: %d packets of %d, which should be 5000", i, s.n, sum)
		}
	}
}

// Two transfers do not slow each other if the payload of each shares an edge with the requests of the other.
func TestEdgesDoNotWaitForOneAnother(t *testing.T) {
	clock, up, down := NewClock(1), NewEdge("up", 100e6), NewEdge("down", 100e6)
	var routes [2]*Route
	for i, e := range []*Edge{up, down} {
		routes[i] = NewRoute(clock, []Share{{Edge: e, Payload: 0.95}, {Edge: []*Edge{down, up}[i], Payload: 0.05}})
	}
	var next, n [2]int64
	for min(next[0], next[1]) < int64(time.Second) {
		i := 0
		if next[1] < next[0] {
			i = 1
		}
		now := next[i]
		next[i] = max(now, routes[i].Take(now, Use{Payload: 64 << 10}))
		n[i]++
	}
	for i := range n {
		if rate := n[i] * (64 << 10); rate < 99e6 || rate > 102e6 {
			t.Errorf("transfer %d: %d bytes a second", i, rate)
		}
	}
}

func TestIdleEdgeGivesNoMoreThanItsCredit(t *testing.T) {
	e := NewEdge("a", 1e9)
	r := NewRoute(NewClock(1), []Share{{Edge: e, Payload: 1}})
	r.Take(1, Use{Payload: 1000})
	now, n := int64(time.Hour), 0
	for ; r.Take(now, Use{Payload: 10_000}) == 0; n++ {
	}
	if most := int(int64(Credit)/10_000) + 1; n != most {
		t.Errorf("%d packets at once after an hour, not %d", n, most)
	}
}

func TestNoRouteCostsNothing(t *testing.T) {
	r := NewRoute(NewClock(1), nil)
	if r != nil || r.Take(1, Use{Payload: 1}) != 0 {
		t.Error("a route without edges is not nil, or makes packets wait")
	}
}

func TestTakesTogether(t *testing.T) {
	e := NewEdge("a", 1e9)
	r := NewRoute(NewClock(1), []Share{{Edge: e, Payload: 1}})
	var wg sync.WaitGroup
	const workers, packets = 4, 1000
	for range workers {
		wg.Go(func() {
			for range packets {
				r.Take(1, Use{Payload: 100})
			}
		})
	}
	wg.Wait()
	want := int64(workers * packets * 100)
	if free := r.Take(1, Use{}); e.Busy() != want || free != want {
		t.Errorf("busy for %d ns of %d, free at %d", e.Busy(), want, free)
	}
}

func TestTakeAllocatesNothing(t *testing.T) {
	r := NewRoute(NewClock(1), []Share{{Edge: NewEdge("a", 1e9), Payload: 1}, {Edge: NewEdge("b", 1e9), Payload: 1}})
	if n := testing.AllocsPerRun(100, func() { r.Take(Now(), Use{Payload: 100}) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkTake(b *testing.B) {
	var shares []Share
	for range 8 {
		shares = append(shares, Share{Edge: NewEdge("a", 1e15), Payload: 1})
	}
	r := NewRoute(NewClock(1), shares)
	for b.Loop() {
		r.Take(Now(), Use{Payload: 100})
	}
}

// Requests do not exceed the rate of their edge, although Take lets them pass between other bytes.
func TestRequestsDoNotExceedAnEdge(t *testing.T) {
	clock, slow := NewClock(1), NewEdge("slow", 1e6)
	r := NewRoute(clock, []Share{{Edge: NewEdge("fast", 25e6), Payload: 1}, {Edge: slow, Payload: 0.05}})
	const packet = 64 << 10
	n := drive(r, Use{Payload: packet}, 0)
	if rate := float64(n) * packet * 0.05; rate > 1.02e6 || rate < 0.99e6 {
		t.Errorf("%v bytes of requests a second, not 1e6", rate)
	}
}
