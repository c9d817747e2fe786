package virtio_test

import (
	"encoding/binary"
	"log/slog"
	"maps"
	"slices"
	"testing"
	"time"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/nic/nictest"
	"vnic.dev/vnic/virtq"
	"vnic.dev/vnic/wire"
)

// A stockGuest is one whose driver knows none of our commands.
type stockGuest struct{ *suiteGuest }

// newStockWorld makes a sender and a receiver with three queue pairs.
func newStockWorld(t testing.TB) (from *suiteGuest, to stockGuest) {
	files := dma.NewFiles()
	sw := wire.NewSwitch(slog.New(slog.DiscardHandler))
	t.Cleanup(func() { _ = sw.Close() })
	ro := rawOptions{pairs: 3, mtu: 1500, patience: patient}
	return newSuiteGuest(t, files, sw, 0, ro), stockGuest{newRawSuiteGuest(t, files, sw, 1, ro)}
}

// post posts small buffers.
func (g stockGuest) post(q, n int) {
	g.t.Helper()
	for range n {
		addr, _ := g.alloc(2048)
		g.must(g.rings[2*q].Add(nil, []virtq.Buf{{Addr: addr, Len: 2048}}, 0))
	}
	g.publish(2 * q)
}

// spread waits until flows are spread over these queues.
func (g stockGuest) spread(want ...uint16) {
	g.t.Helper()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) { // the monitor sees to it
		r, err := g.Port().RSS()
		g.must(err)
		slices.Sort(r.Table)
		if got := slices.Compact(r.Table); slices.Equal(got, want) {
			return
		} else if time.Now().After(end) {
			g.t.Fatalf("spread over %v, not %v", got, want)
		}
	}
}

// flows sends 32 flows and says how many came to each queue.
func (g stockGuest) flows(from *suiteGuest) map[int]int {
	g.t.Helper()
	const flows = 32
	for i := range flows {
		from.Queue(0, nictest.Make(g.mac, from.mac, nictest.Spec{Payload: 100, Port: uint16(1000 + i)}))
	}
	from.Sent(0)
	_, tx := from.Port().QueueCounters(0)
	got, all := map[int]int{}, 0
	for q := range 3 {
		var used [rawRing]virtq.Used
		n, err := g.rings[2*q].Poll(used[:])
		g.must(err)
		if got[q] = n; n == 0 {
			delete(got, q)
		}
		all += n
	}
	if all != flows {
		g.t.Fatalf("of %d frames %d came: %v; sender's drops %d", flows, all, got, tx.Drops)
	}
	return got
}

// A driver that knows no commands gets its flows on all receive queues that it uses, as the
// kernel's virtio_net expects; one of ours, which keeps queues for what it binds, on queue 0 until
// it asks for more.
//
// Invariant: nic/virtio: Flows of a driver that asks for nothing are spread over all queues that it
// feeds, after a reconnect too.
func TestFlowsAreSpreadForADriverThatAsksForNothing(t *testing.T) {
	from, g := newStockWorld(t)
	g.spread(0) // all are enabled and kicked, as QEMU kicks; none has a buffer
	g.post(0, 200)
	g.post(1, 200)
	g.spread(0, 1)
	if got := slices.Sorted(maps.Keys(g.flows(from))); !slices.Equal(got, []int{0, 1}) {
		t.Errorf("flows on %v", got)
	}
	g.post(2, 200)
	g.spread(0, 1, 2)
	if got := slices.Sorted(maps.Keys(g.flows(from))); !slices.Equal(got, []int{0, 1, 2}) {
		t.Errorf("flows on %v", got)
	}
	g.must(g.front.SetEnable(2, false)) // as ethtool -L does
	g.spread(0, 2)
	if got := slices.Sorted(maps.Keys(g.flows(from))); !slices.Equal(got, []int{0, 2}) {
		t.Errorf("flows on %v", got)
	}
	g.must(g.front.SetEnable(2, true))
	g.spread(0, 1, 2)
	_, err := g.Port().Info() // Hello
	g.must(err)
	g.spread(0)
	g.must(g.front.SetEnable(2, false))
	g.spread(0)
	if got := g.flows(from); got[0] != 32 {
		t.Errorf("with our driver flows on %v", got)
	}
}

func TestSpreadLeavesRSSThatSomebodySet(t *testing.T) {
	_, g := newStockWorld(t)
	r, err := g.Port().RSS()
	g.must(err)
	r.Table = []uint16{1}
	g.must(g.Port().SetRSS(r))
	g.post(0, 1)
	g.post(1, 1)
	g.must(g.front.SetEnable(0, true)) // what follows a Post by the monitor this does at once
	g.spread(1)
	_, err = g.Port().Info()
	g.must(err)
	g.spread(1)
}

// Rings that this connection has stopped or only paused go on where they were.
//
// Invariant: nic/virtio: Flows of a driver that asks for nothing are spread over all queues that it
// feeds, after a reconnect too.
func TestRingsThatStopForAMomentStaySpread(t *testing.T) {
	from, g := newStockWorld(t)
	g.post(0, 200)
	g.post(1, 200)
	g.spread(0, 1)
	g.flows(from)
	for i := range g.rings {
		base, err := g.front.GetVringBase(i)
		g.must(err)
		g.setup(i, base)
	}
	g.spread(0, 1)
	if got := slices.Sorted(maps.Keys(g.flows(from))); !slices.Equal(got, []int{0, 1}) {
		t.Errorf("stopped and started: flows on %v", got)
	}
	for i := range g.rings { // a new kick pauses the ring
		g.must(g.front.SetVringKick(i, g.kicks[i]))
	}
	g.spread(0, 1)
	if got := slices.Sorted(maps.Keys(g.flows(from))); !slices.Equal(got, []int{0, 1}) {
		t.Errorf("paused: flows on %v", got)
	}
}

// The rings of a frontend that came back, maybe to a backend that knows nothing of its guest, go on
// with the buffers that they have. If the driver is one of ours whose splits are lost, it drops the
// first whole frame on a bound queue, and says Hello.
//
// Invariant: nic/virtio: Flows of a driver that asks for nothing are spread over all queues that it
// feeds, after a reconnect too.
func TestFlowsAreSpreadAfterAReconnect(t *testing.T) {
	from, g := newStockWorld(t)
	for q := range 3 {
		g.post(q, 200)
	}
	g.spread(0, 1, 2)
	used := func(ring int) uint32 {
		_, _, used := g.rings[ring].Addrs()
		return uint32(binary.LittleEndian.Uint16(g.mem[used+2:]))
	}
	if got := slices.Sorted(maps.Keys(g.flows(from))); !slices.Equal(got, []int{0, 1, 2}) { // each ring has used something
		t.Fatalf("flows on %v", got)
	}
	g.redial(rawOptions{pairs: 3, mtu: 1500, patience: patient}, used)
	g.spread(0, 1, 2)
	if got := slices.Sorted(maps.Keys(g.flows(from))); !slices.Equal(got, []int{0, 1, 2}) {
		t.Errorf("flows on %v", got)
	}
}
