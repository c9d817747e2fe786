package rdma

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"syscall"

	"vnic.dev/vnic/internal/control"
)

// Defaults of TransferOptions.
const (
	defaultSize   = 1 << 20
	defaultWindow = 16
)

// TransferOptions configure Put and Get; the zero value works.
type TransferOptions struct {
	Size   uint32 // bytes in a work request, at most; 1 MiB if 0; Limits.Length bounds it
	Window int    // work requests in progress, at most; 16 if 0; MaxSend and the send CQ's Depth bound it
	// Notify makes the last work request of a Put a WRITE with immediate: the peer, which must have posted a
	// receive, gets a completion with Imm after all bytes have arrived.
	Notify bool
	Imm    uint32
	// Progress, if set, is called after each batch of completions, with Counts.Bytes so far.
	Progress func(done uint64)
}

// Counts is the result of a transfer.
type Counts struct {
	Posted    uint64 // work requests
	Completed uint64 // work requests that succeeded, before a failure of any
	Bytes     uint64 // bytes of Completed: the first bytes of the range
}

type transfer struct {
	qp     *QP
	local  Local
	remote Remote
	op     control.WROp
	o      TransferOptions
	window uint64

	number uint32
	claim  claim
	total  uint64
	counts Counts
	ended  uint64 // work requests that have a completion
	failed error
}

// Put writes a local part to the peer's memory, which must not be shorter. After success the bytes are there. A
// queue pair runs one transfer at a time: others wait.
//
// After a *WCError nothing of the transfer is in progress. After another error, including ctx's, work requests
// may be in progress: the NIC may use the local memory until QP.Close.
func Put(ctx context.Context, qp *QP, local Local, remote Remote, o TransferOptions) (Counts, error) {
	return newTransfer(ctx, qp, local, remote, control.WRWrite, o)
}

// Get reads the peer's memory, with remote's length, into a local part that must not be shorter. Otherwise it
// is like Put. EINVAL: o.Notify is set.
func Get(ctx context.Context, qp *QP, local Local, remote Remote, o TransferOptions) (Counts, error) {
	if o.Notify {
		return Counts{}, fmt.Errorf("get: a READ tells the peer nothing: %w", syscall.EINVAL)
	}
	return newTransfer(ctx, qp, local, remote, control.WRRead, o)
}

func newTransfer(ctx context.Context, qp *QP, local Local, remote Remote, op control.WROp, o TransferOptions) (
	Counts, error) {
	if err := local.check(); err != nil {
		return Counts{}, err
	}
	limits := &qp.pd.d.Limits
	t := &transfer{qp: qp, local: local, remote: remote, op: op, o: o}
	t.o.Size = cmp.Or(t.o.Size, defaultSize)
	if limits.Length > 0 {
		t.o.Size = uint32(min(uint64(t.o.Size), limits.Length))
	}
	t.o.Window = cmp.Or(t.o.Window, defaultWindow)
	n := local.Len
	if op == control.WRRead {
		n = remote.Len
	}
	t.window = uint64(min(t.o.Window, qp.c.MaxSend, qp.c.SendCQ.Depth))
	t.total = n/uint64(t.o.Size) + min(1, n%uint64(t.o.Size))
	if n == 0 && o.Notify {
		t.total = 1
	}
	switch {
	case n > local.Len || n > remote.Len:
		return Counts{}, fmt.Errorf("%d bytes here, %d at the peer: the destination is too short: %w", local.Len, remote.Len,
			syscall.EINVAL)
	case o.Window < 0 || t.window == 0:
		return Counts{}, fmt.Errorf("a window of %d, and %d places to send: %w", o.Window, qp.c.MaxSend, syscall.EINVAL)
	case t.total > math.MaxUint32:
		return Counts{}, fmt.Errorf("%d work requests of %d bytes: larger ones are needed: %w", t.total, t.o.Size,
			syscall.EINVAL)
	}
	t.local.Len = n
	select {
	case qp.transfers <- struct{}{}:
	case <-ctx.Done():
		return Counts{}, context.Cause(ctx)
	}
	defer func() { <-qp.transfers }()
	d := qp.pd.d
	d.mu.Lock()
	d.transfer = (d.transfer + 1) &^ (1 << 31)
	t.number = d.transfer
	d.mu.Unlock()
	t.claim.qp = qp
	defer qp.c.SendCQ.claim(t.number, &t.claim)()
	if qp.closed.Load() { // after the claim: Close marks existing claims
		qp.c.SendCQ.gone(qp)
	}
	err := t.run(ctx)
	return t.counts, err
}

func (t *transfer) run(ctx context.Context) error {
	for t.ended < t.total {
		if t.failed == nil {
			if err := t.fill(ctx); err != nil {
				return err
			}
		}
		if t.ended == t.counts.Posted { // nothing is in progress
			return t.failed
		}
		wcs, err := t.qp.c.SendCQ.wait(ctx, &t.claim)
		if err != nil {
			if t.failed != nil { // as text: a WCError means that nothing is in progress
				err = fmt.Errorf("%w; before that: %v", err, t.failed)
			}
			return err
		}
		for _, w := range wcs {
			if err := t.complete(w); err != nil {
				return err
			}
		}
		if t.o.Progress != nil {
			t.o.Progress(t.counts.Bytes)
		}
	}
	return t.failed
}

func (t *transfer) fill(ctx context.Context) error {
	room := min(t.window-(t.counts.Posted-t.ended), t.total-t.counts.Posted)
	wrs := make([]WR, 0, room)
	for i := range room {
		wrs = append(wrs, t.request(t.counts.Posted+i))
	}
	var err error
	for { // a frame is posted completely or not at all: fewer work requests may fit
		var n int
		n, err = t.qp.post(ctx, t.qp.pd.d.client.PostSend, wrs)
		t.counts.Posted += uint64(n)
		if wrs = wrs[n:]; !errors.Is(err, ErrFull) || len(wrs) < 2 {
			break
		}
		wrs = wrs[:len(wrs)/2]
	}
	refused := (*control.Error)(nil)
	switch {
	case errors.Is(err, ErrFull) && t.counts.Posted > t.ended:
		return nil // run calls fill again after the next completions
	case errors.As(err, &refused):
		t.failed = err // run returns it when the work requests in progress have ended
		return nil
	}
	return err
}

func (t *transfer) size(i uint64) uint64 {
	return min(uint64(t.o.Size), t.local.Len-i*uint64(t.o.Size))
}

func (t *transfer) request(i uint64) WR {
	off := i * uint64(t.o.Size)
	w := WR{ID: transferBit | uint64(t.number)<<32 | i, Op: t.op, Flags: control.WRSignaled, Key: t.remote.Key,
		Remote: t.remote.VA + off}
	if n := t.size(i); n > 0 {
		w.SGEs = []SGE{{VA: t.local.MR.VA + t.local.Off + off, Len: uint32(n), Key: t.local.MR.Key}}
	}
	if t.o.Notify && i == t.total-1 {
		w.Op, w.Imm, w.Flags = control.WRWriteImm, t.o.Imm, control.WRSignaled|control.WRSolicited
	}
	return w
}

// complete counts a completion. EPROTO: it does not belong to the next work request.
func (t *transfer) complete(w WC) error {
	i := uint64(uint32(w.ID))
	if i != t.ended || i >= t.counts.Posted {
		return fmt.Errorf("queue pair %d: work request %d of a transfer is complete, where %d is the next of %d that are "+
			"posted: %w", t.qp.Number, i, t.ended, t.counts.Posted, syscall.EPROTO)
	}
	t.ended++
	if err := Err(w); err != nil {
		if t.failed == nil {
			t.failed = fmt.Errorf("bytes %d to %d of %d: %w", i*uint64(t.o.Size), i*uint64(t.o.Size)+t.size(i), t.local.Len,
				err)
		}
		return nil
	}
	if t.failed == nil {
		t.counts.Completed++
		t.counts.Bytes += t.size(i)
	}
	return nil
}
