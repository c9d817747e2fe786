package rdma

import (
	"context"
	"errors"
	"fmt"
	"math"
	"syscall"

	"vnic.dev/vnic/internal/control"
)

// Of TransferOptions.
const (
	defaultSize   = 1 << 20
	defaultWindow = 16
)

// TransferOptions configure Put and Get; the zero value is good.
type TransferOptions struct {
	Size   uint32 // bytes of a work request at most; 1 MiB if 0
	Window int    // work requests under way at most; 16 if 0, and no more than the queue pair has places
	// Notify has the last work request of a Put be a WRITE with immediate: the peer, which posted a receive, has a
	// completion with Imm once all that was put is there.
	Notify bool
	Imm    uint32
	// Progress is called, if set, after each batch of completions, with the bytes that are done.
	Progress func(done uint64)
}

// Counts is what came of a transfer.
type Counts struct {
	Posted    uint64 // work requests
	Completed uint64 // of these, with success
	Bytes     uint64 // of the completed ones: they are the first ones of the range
}

// transfer is a Put or a Get under way.
type transfer struct {
	qp     *QP
	local  Local
	remote Remote
	op     control.WROp
	o      TransferOptions
	window uint64

	number uint32
	claim  claim
	total  uint64 // work requests
	counts Counts
	ended  uint64 // work requests that have a completion
	failed error  // the first one
}

// Put writes a local part to memory of the peer, which must be as long at least, by work requests of o.Size, a window
// of them at a time, and returns when the last one is complete: the bytes are in the peer's memory. Transfers of a
// queue pair follow one another.
//
// A *WCError says which work request failed; nothing of the transfer is under way any more then. After another error,
// of ctx too, work requests may be: the local memory is the NIC's until QP.Close.
func Put(ctx context.Context, qp *QP, local Local, remote Remote, o TransferOptions) (Counts, error) {
	return newTransfer(ctx, qp, local, remote, control.WRWrite, o)
}

// Get reads memory of the peer, of remote's length, into a local part that is as long at least. The rest is as with
// Put.
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
	if t.o.Size == 0 {
		t.o.Size = defaultSize
	}
	if limits.Length > 0 {
		t.o.Size = uint32(min(uint64(t.o.Size), limits.Length))
	}
	if t.o.Window == 0 {
		t.o.Window = defaultWindow
	}
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
	if qp.closed.Load() { // after the claim: Close tells who has one
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
		if t.ended == t.counts.Posted { // with an error: nothing is under way
			return t.failed
		}
		wcs, err := t.qp.c.SendCQ.wait(ctx, &t.claim)
		if err != nil {
			if t.failed != nil { // as text: a WCError says that nothing is under way
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

// fill posts as many work requests as the window has room for.
func (t *transfer) fill(ctx context.Context) error {
	room := min(t.window-(t.counts.Posted-t.ended), t.total-t.counts.Posted)
	wrs := make([]WR, 0, room)
	for i := range room {
		wrs = append(wrs, t.request(t.counts.Posted+i))
	}
	var err error
	for { // a frame is posted whole or not at all: smaller ones may fit
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
		return nil // other work requests have the places: ours end first
	case errors.As(err, &refused):
		t.failed = err // what is under way ends before it is returned
		return nil
	}
	return err
}

// size is the length of a work request.
func (t *transfer) size(i uint64) uint64 {
	return min(uint64(t.o.Size), t.local.Len-i*uint64(t.o.Size))
}

func (t *transfer) request(i uint64) WR {
	off := i * uint64(t.o.Size)
	w := WR{ID: own | uint64(t.number)<<32 | i, Op: t.op, Flags: control.WRSignaled, Key: t.remote.Key,
		Remote: t.remote.VA + off}
	if n := t.size(i); n > 0 {
		w.SGEs = []SGE{{VA: t.local.MR.VA + t.local.Off + off, Len: uint32(n), Key: t.local.MR.Key}}
	}
	if t.o.Notify && i == t.total-1 {
		w.Op, w.Imm, w.Flags = control.WRWriteImm, t.o.Imm, control.WRSignaled|control.WRSolicited
	}
	return w
}

// complete counts a completion. They come in order.
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
