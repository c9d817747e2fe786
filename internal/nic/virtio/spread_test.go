package virtio_test

import (
	"fmt"
	"slices"
	"testing"

	"vnic.dev/vnic/internal/nic/nictest"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/virtq"
)

// newStockWorld makes a sender, and a receiver with three queue pairs whose driver has not asked for Info and sets no
// RSS.
func newStockWorld(t testing.TB) (from, to *suiteGuest) {
	files, sw := nictest.Switch(t)
	ro := rawOptions{pairs: 3, mtu: 1500, patience: patient}
	return newSuiteGuest(t, files, sw, 0, ro), newStockGuest(t, files, sw, 1, ro)
}

func (g *suiteGuest) post(q, n int) {
	g.Helper()
	for range n {
		addr, _ := g.Alloc(2048)
		g.OK(g.rings[2*q].Add(nil, []virtq.Buf{{Addr: addr, Len: 2048}}, 0))
	}
	g.publish(2 * q)
}

func (g *suiteGuest) spread(want ...uint16) {
	g.Helper()
	testkit.Eventually(g, fmt.Sprint("spread over ", want), func() bool {
		r, err := g.Port().RSS()
		g.OK(err)
		slices.Sort(r.Table)
		return slices.Equal(slices.Compact(r.Table), want)
	})
}

// getsFlows waits until flows are spread over these queues, and checks that 32 flows reach all of them and no other.
func (g *suiteGuest) getsFlows(from *suiteGuest, want ...uint16) {
	g.Helper()
	g.spread(want...)
	const flows = 32
	for i := range flows {
		from.Queue(0, nictest.Make(g.mac, from.mac, nictest.Spec{Payload: 100, Port: uint16(1000 + i)}))
	}
	from.Sent(0)
	var got []uint16
	all := 0
	for q := range uint16(3) {
		var used [rawRing]virtq.Used
		n, err := g.rings[2*q].Poll(used[:])
		g.OK(err)
		if n > 0 {
			got = append(got, q)
		}
		all += n
	}
	if _, tx := from.Port().QueueCounters(0); all != flows || !slices.Equal(got, want) {
		g.Fatalf("of %d frames %d came, on %v, not %v; sender's drops %d", flows, all, got, want, tx.Drops)
	}
}

// After a driver without RSS has asked for Info, flows go to queue 0.
//
// Invariant: nic/virtio: For a driver that sends no commands and sets no RSS, flows are spread over
// all enabled queues that have had buffers, after a reconnect too.
func TestFlowsAreSpreadForADriverThatAsksForNothing(t *testing.T) {
	from, g := newStockWorld(t)
	g.spread(0) // QEMU's order: all rings are enabled and kicked; none has a buffer
	g.post(0, 200)
	g.post(1, 200)
	g.getsFlows(from, 0, 1)
	g.post(2, 200)
	g.getsFlows(from, 0, 1, 2)
	g.OK(g.front.SetEnable(2, false)) // as ethtool -L does
	g.getsFlows(from, 0, 2)
	g.OK(g.front.SetEnable(2, true))
	g.spread(0, 1, 2)
	_, err := g.Port().Info() // as the driver's InfoHello does
	g.OK(err)
	g.spread(0)
	g.OK(g.front.SetEnable(2, false))
	g.getsFlows(from, 0)
}

func TestSpreadLeavesRSSThatSomebodySet(t *testing.T) {
	_, g := newStockWorld(t)
	r, err := g.Port().RSS()
	g.OK(err)
	r.Table = []uint16{1}
	g.OK(g.Port().SetRSS(r))
	g.post(0, 1)
	g.post(1, 1)
	g.OK(g.front.SetEnable(0, true)) // would set the default table now; after post, the monitor would set it later
	g.spread(1)
	_, err = g.Port().Info()
	g.OK(err)
	g.spread(1)
}

// Invariant: nic/virtio: For a driver that sends no commands and sets no RSS, flows are spread over
// all enabled queues that have had buffers, after a reconnect too.
func TestRingsThatStopForAMomentStaySpread(t *testing.T) {
	from, g := newStockWorld(t)
	g.post(0, 200)
	g.post(1, 200)
	g.getsFlows(from, 0, 1)
	for i := range g.rings {
		g.setup(i, g.base(i))
	}
	g.getsFlows(from, 0, 1)
	for i := range g.rings { // a new kick descriptor stops the ring and starts it again
		g.OK(g.front.SetVringKick(i, g.kicks[i]))
	}
	g.getsFlows(from, 0, 1)
}

// Invariant: nic/virtio: For a driver that sends no commands and sets no RSS, flows are spread over
// all enabled queues that have had buffers, after a reconnect too.
func TestFlowsAreSpreadAfterAReconnect(t *testing.T) {
	from, g := newStockWorld(t)
	for q := range 3 {
		g.post(q, 200)
	}
	g.getsFlows(from, 0, 1, 2)
	g.redial(rawOptions{pairs: 3, mtu: 1500, patience: patient}, g.usedIdx)
	g.getsFlows(from, 0, 1, 2)
}
