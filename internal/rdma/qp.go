package rdma

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"syscall"

	"vnic.dev/vnic/internal/control"
)

// QPConfig configures a queue pair.
type QPConfig struct {
	SendCQ, RecvCQ *CQ // may be the same
	MaxSend        int // most work requests of Post that are not complete; 1 to Limits.Depth
	MaxRecv        int // most receives that are not complete; 0 to Limits.Depth
}

// QP is a reliably connected queue pair.
type QP struct {
	Number uint32
	pd     *PD
	c      QPConfig

	transfers chan struct{} // capacity 1: held by the running transfer
	closed    atomic.Bool
}

// NewQP makes a queue pair, which is not connected yet.
func (p *PD) NewQP(c QPConfig) (*QP, error) {
	for i, n := range []int{c.MaxSend, c.MaxRecv} {
		if n < 1-i || uint64(n) > uint64(p.d.Limits.Depth) {
			return nil, fmt.Errorf("queue pair that sends from %d places and receives into %d: 1 and 0 at least, and %d "+
				"at most: %w", c.MaxSend, c.MaxRecv, p.d.Limits.Depth, syscall.EINVAL)
		}
	}
	if c.SendCQ == nil || c.RecvCQ == nil || c.SendCQ.d != p.d || c.RecvCQ.d != p.d {
		return nil, fmt.Errorf("queue pair: it takes two completion queues of this device: %w", syscall.EINVAL)
	}
	q := control.QP{PD: p.id, SendCQ: c.SendCQ.ID, RecvCQ: c.RecvCQ.ID, MaxSend: uint32(c.MaxSend),
		MaxRecv: uint32(c.MaxRecv)}
	return create(p.d, func(ctx context.Context) (uint32, error) { return p.d.client.AddQP(ctx, q) }, p.d.client.DelQP,
		func(qpn uint32) *QP { return &QP{Number: qpn, pd: p, c: c, transfers: make(chan struct{}, 1)} })
}

// Close destroys the queue pair: after success the NIC accesses no memory for it. Work requests that were not
// complete get no completion; completions from before can still be polled.
func (q *QP) Close() error {
	err := q.pd.d.end(q, func(ctx context.Context) error { return q.pd.d.client.DelQP(ctx, q.Number) })
	if err == nil && q.closed.CompareAndSwap(false, true) {
		q.c.SendCQ.gone(q)
	}
	return err
}

func (q *QP) rank() int { return 0 }

// Connect connects the queue pair, which may then send and receive. It ignores p.QPN, and uses q.Number.
func (q *QP) Connect(ctx context.Context, p Path) error {
	p.QPN = q.Number
	return q.pd.d.ask(ctx, func(ctx context.Context) error { return q.pd.d.client.ConnectQP(ctx, p) })
}

// Status asks the NIC for the state of the queue pair.
func (q *QP) Status(ctx context.Context) (control.QPStatus, error) {
	return ask(ctx, q.pd.d, func(ctx context.Context) (control.QPStatus, error) {
		return q.pd.d.client.QPStatus(ctx, q.Number)
	})
}

// Post posts work requests in frames, and returns how many of them it posted, from the first on; the NIC posts
// all of a frame, or none. ErrFull: there is no room for the next frame. EINVAL: the NIC refuses a work request of the
// next frame, or an id has the highest bit set, which is reserved for this package (nothing is posted). After
// control.ErrNoAnswer the NIC may have posted the next frame too.
func (q *QP) Post(ctx context.Context, wrs ...WR) (posted int, err error) {
	if err := checkIDs(wrs); err != nil {
		return 0, err
	}
	return q.post(ctx, q.pd.d.client.PostSend, wrs)
}

func checkIDs(wrs []WR) error {
	for i := range wrs {
		if wrs[i].ID&transferBit != 0 {
			return fmt.Errorf("work request %#x: ids with the highest bit are not for programs: %w", wrs[i].ID,
				syscall.EINVAL)
		}
	}
	return nil
}

// PostRecv is Post for receives. Each SEND of the peer takes one, and goes to the memory of this receive; each WRITE
// with immediate takes one, too. Op is 0 or control.WRRecv.
func (q *QP) PostRecv(ctx context.Context, wrs ...WR) (posted int, err error) {
	if err := checkIDs(wrs); err != nil {
		return 0, err
	}
	receives := make([]WR, len(wrs))
	for i, w := range wrs {
		if w.Op != 0 && w.Op != control.WRRecv {
			return 0, fmt.Errorf("work request %#x: a %s is no receive: %w", w.ID, opName(w.Op), syscall.EINVAL)
		}
		receives[i] = w
		receives[i].Op = control.WRRecv
	}
	return q.post(ctx, q.pd.d.client.PostRecv, receives)
}

func (q *QP) post(ctx context.Context, call func(context.Context, control.Post) error, wrs []WR) (
	posted int, err error) {
	for posted < len(wrs) {
		if q.closed.Load() {
			return posted, fmt.Errorf("queue pair %d is closed: %w", q.Number, net.ErrClosed)
		}
		frame := frameOf(wrs[posted:])
		err := q.pd.d.ask(ctx, func(ctx context.Context) error {
			return call(ctx, control.Post{QPN: q.Number, WRs: frame})
		})
		if err != nil {
			return posted, full(err)
		}
		posted += len(frame)
	}
	return posted, nil
}

// frameOf returns the first of wrs, as many as a frame holds, and at least one. wrs is not empty.
func frameOf(wrs []WR) []WR {
	size := 0
	for i := range wrs {
		if size += control.WRLen(len(wrs[i].SGEs)); size > control.MaxPost {
			return wrs[:max(i, 1)]
		}
	}
	return wrs
}
