package servelab

import (
	"context"
	"fmt"

	"vnic.dev/vnic/internal/wire"
)

// counts has, for each queue pair of the first guest's NIC, the packets that it received and sent and the interrupts
// of its receive queue, and what was dropped at all ports.
type counts struct {
	rx, tx, irqs [pairs]uint64
	drops        map[string]uint64 // the keys are "PORT: REASON"
}

func (c counts) minus(b counts) counts {
	for i := range pairs {
		c.rx[i] -= b.rx[i]
		c.tx[i] -= b.tx[i]
		c.irqs[i] -= b.irqs[i]
	}
	drops := map[string]uint64{}
	for why, n := range c.drops {
		if n -= b.drops[why]; n > 0 {
			drops[why] = n
		}
	}
	c.drops = drops
	return c
}

func some(list [pairs]uint64, n int) (k int) {
	for _, v := range list[:n] {
		if v > 0 {
			k++
		}
	}
	return k
}

func (l *stockLab) counts(ctx context.Context) (c counts) {
	l.must("interrupts", l.guests[0].Call(ctx, "stock.interrupts", nil, &c.irqs))
	snap := l.stat(ctx)
	if len(snap[0].Queues) != pairs {
		l.Fatalf("vnic stat: %+v", snap)
	}
	for i, q := range snap[0].Queues {
		c.rx[i], c.tx[i] = q.RX.Packets, q.TX.Packets
	}
	c.drops = map[string]uint64{}
	for _, p := range snap {
		for reason, n := range p.Link.Drops {
			if p.Name == "gateway" && reason == wire.DropUnknownDst.String() {
				continue // frames that the gateway does not accept, such as guests' multicast reports
			}
			c.drops[p.Name+": "+reason] = n
		}
	}
	return c
}

func (l *stockLab) queues(ctx context.Context) {
	for _, n := range []int{pairs, 2, 1, pairs} {
		what := fmt.Sprintf("%d of %d queue pairs", n, pairs)
		l.do(ctx, what, step{0, "stock.queues", args{Queues: uint32(n)}})
		l.spread(ctx, what, n)
	}
}

// spread checks that streams use at least two of the first n queue pairs of guest 0, or the first if n is 1, and no
// others, and that nothing is dropped.
func (l *stockLab) spread(ctx context.Context, what string, n int) {
	before := l.counts(ctx)
	l.streams(ctx, what, 16, short/4)
	c := l.counts(ctx).minus(before)
	for name, list := range map[string][pairs]uint64{"received": c.rx, "sent": c.tx,
		"interrupts of receive queues": c.irqs} {
		if used := some(list, n); some(list, pairs) != used || used < min(n, 2) {
			l.Fatalf("%s: %s: %v", what, name, list)
		}
	}
	if len(c.drops) != 0 {
		l.Fatalf("%s: packets were dropped: %v", what, c.drops)
	}
	l.ok("%s: received %v, interrupts %v, sent %v, none dropped", what, c.rx, c.irqs, c.tx)
}
