package gateway

import (
	"fmt"
	"testing"

	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"

	"vnic.dev/vnic/internal/testkit"
)

// The more connections a port has, the smaller are the buffers of the next; what they are in all is bounded, whoever
// has how many.
func TestBuffersShareABudget(t *testing.T) {
	for n, want := range map[int]int{1: 1 << 20, 7: 1 << 20, 8: 512 << 10, 16: 256 << 10, 32: 128 << 10, 64: 64 << 10,
		maxTCP: 64 << 10} {
		testkit.Equal(t, fmt.Sprintf("buffers of connection %d", n), bufferOf(n), want)
	}
	for _, ports := range []int{1, 2, 16, maxTCP} {
		b := &budget{left: bufferSpare, by: map[owner]int{}}
		var all []*buffers
		sum := 0
		for i := range maxTCP {
			f := b.take(owner{link: uint32(i % ports)}, 1+i/ports)
			all, sum = append(all, f), sum+2*f.size
		}
		for range maxDNSConns {
			f := b.take(owner{link: 1}, maxTCP)
			all, sum = append(all, f), sum+2*f.size
		}
		if sum += maxUnfinished * bufferLeast; sum > bufferAll || b.left < 0 {
			t.Errorf("%d ports: %d bytes in all, %d left", ports, sum, b.left)
		}
		for _, f := range all {
			f.received()
			f.free()
		}
		testkit.Equal(t, "left when all have ended", b.left, bufferSpare)
		testkit.Equal(t, "ports that have some", len(b.by), 0)
	}
}

// Ports that have much leave some to one that has nothing yet.
func TestBudgetIsNobodysAlone(t *testing.T) {
	b := &budget{left: bufferSpare, by: map[owner]int{}}
	for n := range 63 {
		b.take(owner{link: 1}, n+1)
		b.take(owner{link: 2}, n+1)
	}
	testkit.Equal(t, "the first connection of a third port", b.take(owner{link: 3}, 1).size, bufferMost)
}

// A connection has the buffers that the budget gives it, and gives them back when the guest has confirmed its end.
func TestConnectionsHaveTheirPart(t *testing.T) {
	w := newRig(t, nil)
	v, to := w.guest(1), own4(echoServer(t, "tcp4").Port())
	for range 8 {
		c := v.mustDial(to)
		defer c.Close()
	}
	sizes := map[int64]int{}
	testkit.Eventually(t, "all have their buffers", func() bool {
		clear(sizes)
		for _, registered := range w.g.ns.RegisteredEndpoints() {
			if ep, ok := registered.(*tcp.Endpoint); ok && ep.EndpointState() == tcp.StateEstablished {
				o := ep.SocketOptions()
				sizes[o.GetSendBufferSize()+o.GetReceiveBufferSize()]++
			}
		}
		return sizes[2<<20] == 7 && sizes[1<<20] == 1
	})
	left := func() int {
		w.g.buffers.mu.Lock()
		defer w.g.buffers.mu.Unlock()
		return w.g.buffers.left
	}
	testkit.Equal(t, "left", left(), bufferSpare-7*2*(1<<20-64<<10)-2*(512<<10-64<<10))
	v.link.Restarted()
	testkit.Eventually(t, "all is given back", func() bool { return left() == bufferSpare })
}
