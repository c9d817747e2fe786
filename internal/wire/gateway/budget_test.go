package gateway

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"testing"

	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"

	"vnic.dev/vnic/internal/testkit"
)

// From an owner's eighth connection on, buffers are smaller than 1 MiB; all together they have at most bufferAll bytes.
func TestBuffersShareABudget(t *testing.T) {
	for n, want := range map[int]int{1: 1 << 20, 7: 1 << 20, 8: 512 << 10, 16: 256 << 10, 32: 128 << 10, 64: 64 << 10,
		maxTCP: 64 << 10} {
		testkit.Equal(t, fmt.Sprintf("buffers of connection %d", n), newConnBudget().sizeOf(n), want)
	}
	for _, ports := range []int{1, 2, 16, maxTCP} {
		b := newConnBudget()
		var all []*buffers
		sum := 0
		for i := range maxTCP {
			f := b.take(owner{link: uint32(i % ports)}, 1+i/ports, 2)
			all, sum = append(all, f), sum+2*f.size
		}
		for range maxDNSConns {
			f := b.take(owner{link: 1}, maxTCP, 2)
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

func TestSocketsOfFlowsShareABudget(t *testing.T) {
	for _, ports := range []int{1, 2, 16, maxUDP} {
		b := newBudget(flowBuffer, flowLeast, flowSpare)
		var all []*buffers
		sum := 0
		has := func(f *buffers) bool {
			if f != nil {
				all, sum = append(all, f), sum+f.size
			}
			return f != nil
		}
		for i := range maxUDP {
			o, n := owner{link: uint32(i % ports)}, 1+i/ports
			has(b.take(o, n, 1))
			has(b.take(o, n, 1))
			for k := 1; k < flowSockets && has(b.more(o, n)); k++ {
			}
		}
		if sum > flowAll || len(all) > 2*maxUDP+flowSpare/flowLeast || b.left < 0 {
			t.Errorf("%d ports: %d sockets, %d bytes, %d left", ports, len(all), sum, b.left)
		}
		for _, f := range all {
			f.free()
		}
		testkit.Equal(t, "left when all have ended", b.left, flowSpare)
		testkit.Equal(t, "ports that have some", len(b.by), 0)
	}
}

// A flow may send to more ports than it may have sockets: new sockets replace its oldest ones.
func TestFlowsHaveTheirPartOfSockets(t *testing.T) {
	const ports = 2 * flowSockets
	for name, spare := range map[string]int{"none": 0, "some": 4 * flowLeast, "much": flowSpare} {
		want := map[string]int{"none": 1, "some": 3, "much": flowSockets}[name]
		t.Run(name, func(t *testing.T) {
			opened := make(chan *net.UDPConn, ports+1)
			w := newRig(t, nil, func(g *Gateway) {
				g.sockets = newBudget(flowLeast, flowLeast, spare)
				g.openFlow = func(ctx context.Context, f Flow, _ permit) (*net.UDPConn, error) {
					c, err := f.open(ctx)
					opened <- c
					return c, err
				}
			})
			v := w.guest(1)
			c := v.unconnected(netip.AddrPortFrom(addr4Of(1), 2000))
			for range ports {
				server := hostUDP(t, net.IPv4(127, 0, 0, 1))
				testkit.Must(c.WriteTo([]byte("ask"), net.UDPAddrFromAddrPort(own4(portOf(server)))))(t)
				from := hears(t, server, "ask")
				testkit.Must(server.WriteToUDPAddrPort([]byte("answer"), from))(t)
				testkit.Equal(t, "answer from", hears(t, c, "answer"), own4(portOf(server)))
			}
			close(opened)
			open := 0
			for c := range opened {
				if raw := testkit.Must(c.SyscallConn())(t); raw.Control(func(uintptr) {}) == nil {
					open++
				}
			}
			testkit.Equal(t, "sockets that are open", open, want+1)
			v.link.Restarted()
			testkit.Eventually(t, "all is given back", func() bool { return w.g.sockets.free() == spare })
		})
	}
}

func newConnBudget() *budget { return newBudget(bufferMost, bufferLeast, bufferSpare) }

func (b *budget) free() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.left
}

func TestBudgetIsNobodysAlone(t *testing.T) {
	b := newConnBudget()
	for n := range 63 {
		b.take(owner{link: 1}, n+1, 2)
		b.take(owner{link: 2}, n+1, 2)
	}
	testkit.Equal(t, "the first connection of a third port", b.take(owner{link: 3}, 1, 2).size, bufferMost)
}

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
	left := w.g.buffers.free
	testkit.Equal(t, "left", left(), bufferSpare-7*2*(1<<20-64<<10)-2*(512<<10-64<<10))
	v.link.Restarted()
	testkit.Eventually(t, "all is given back", func() bool { return left() == bufferSpare })
}
