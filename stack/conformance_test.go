package stack_test

import (
	"context"
	"net"
	"net/netip"
	"testing"

	"vnic.dev/vnic/internal/devmemtest"
	"vnic.dev/vnic/internal/stacktest"
	"vnic.dev/vnic/stack"
)

type host struct {
	s    *stack.Stack
	addr netip.Addr
}

func (h host) Addr() netip.Addr { return h.addr }

func (h host) Listen(a netip.AddrPort) (net.Listener, error) { return h.s.Listen(a) }

func (h host) Dial(ctx context.Context, l, r netip.AddrPort) (net.Conn, error) {
	return h.s.Dial(ctx, l, r)
}

// Invariant: stack: devmem sockets have the semantics that package devmemtest checks.
func TestConformance(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		o    stacktest.Options
		v6   bool
	}{
		{"v4", stacktest.Options{}, false},
		{"v6", stacktest.Options{Cut: true, Checksums: true}, true},
		{"mtu9000", stacktest.Options{MTU: 9000, Cut: true, Merge: true}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, k := range devmemtest.Cases() {
				t.Run(k.Name, func(t *testing.T) {
					w := newRig(t, c.o)
					dev, peer := w.b4, w.a4
					if c.v6 {
						dev, peer = w.b6, w.a6
					}
					k.Run(t, &devmemtest.World{
						Dev: w.b, Addr: dev, Queues: []int{1, 2}, Memory: devmemtest.Bytes(w.nb.Memory()),
						Host: host{w.a, peer}, Strict: true, Pages: true,
					})
				})
			}
		})
	}
}
