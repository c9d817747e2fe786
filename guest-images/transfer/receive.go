package transfer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"syscall"

	"vnic.dev/vnic/control"
	"vnic.dev/vnic/devmem"
)

// Receive receives all bytes and returns when they lie in the destination, contiguous.
func (n *Node) Receive(ctx context.Context) (r Result, err error) {
	conn := n.conn
	if conn == nil {
		return r, fmt.Errorf("receive: not connected: %w", syscall.ENOTCONN)
	}
	err = n.measure(&r, func() error {
		if n.conf.Mode == Copy {
			return n.receiveCopy(ctx, conn, &r)
		}
		return n.receiveDevmem(ctx, conn, &r)
	})
	return r, err
}

// receiveDevmem gathers fragments. Tokens go back when the fragments they stand for have been gathered.
func (n *Node) receiveDevmem(ctx context.Context, conn devmem.Conn, r *Result) error {
	p, cancel := n.newPipe(ctx)
	var jobs sync.WaitGroup
	defer jobs.Wait()
	defer cancel()
	stop := context.AfterFunc(p.ctx, func() { _ = conn.Close() }) // ends a call that waits
	defer stop()

	frags := make([]devmem.Frag, maxEntries)
	linear := make([]byte, 4<<20)
	var held uint64
	for r.Bytes < n.conf.Len {
		s, err := p.take()
		if err != nil {
			return err
		}
		var tokens tokenSet
		for s.entries < maxEntries && tokens.room() {
			var flags devmem.RecvFlags
			if s.entries > 0 {
				flags = devmem.DontWait // what there is goes to the engine while more comes
			}
			room := min(maxEntries-s.entries, devmem.MaxTokenRanges-len(tokens.ranges))
			got, nf, nl, err := conn.RecvDevmem(frags[:room], linear[:min(uint64(len(linear)), n.conf.Len-r.Bytes)], flags)
			if errors.Is(err, syscall.EAGAIN) {
				break
			}
			if err != nil || got == 0 {
				if err == nil || errors.Is(err, io.EOF) {
					err = fmt.Errorf("connection ended after %d of %d bytes: %w", r.Bytes, n.conf.Len, io.ErrUnexpectedEOF)
				}
				return errors.Join(context.Cause(p.ctx), err)
			}
			if err := n.place(ctx, s, frags[:nf], linear[:nl], r, &tokens); err != nil {
				return err
			}
			if r.Bytes == n.conf.Len {
				break
			}
		}
		keep := held < n.conf.Hold
		if keep {
			held += uint64(s.entries) * devmem.PageSize
		}
		r.Jobs++
		jobs.Add(1)
		go func() {
			defer jobs.Done()
			if err := n.run(p.ctx, control.JobGather, s); err != nil {
				p.fail(err)
				return
			}
			if !keep {
				if _, err := conn.DontNeed(tokens.ranges); err != nil {
					p.fail(fmt.Errorf("give tokens back: %w", err))
					return
				}
			}
			p.free <- s
		}()
	}
	return p.drain(len(n.staging))
}

// place notes where received fragments are to go. Linear bytes, which nobody expects on a bound queue, go through guest
// RAM at once, and are counted.
func (n *Node) place(ctx context.Context, s *slot, frags []devmem.Frag, linear []byte, r *Result, t *tokenSet) error {
	if len(frags) == 0 { // a packet that was not split
		return n.placeLinear(ctx, linear, r)
	}
	for _, f := range frags {
		if f.Kind == devmem.Linear {
			if err := n.placeLinear(ctx, linear[:f.Size], r); err != nil {
				return err
			}
			linear = linear[f.Size:]
			continue
		}
		s.add(n.pool.Offset()+f.Off, n.conf.Off+r.Bytes, f.Size)
		t.add(f.Token)
		r.Bytes += uint64(f.Size)
		r.Frags++
	}
	return nil
}

func (n *Node) placeLinear(ctx context.Context, b []byte, r *Result) error {
	if len(b) == 0 {
		return nil
	}
	var s slot
	var err error
	if s.table, s.tableIOVA, err = n.mem.AllocDMA(control.JobEntryLen); err != nil {
		return err
	}
	if s.data, s.dataIOVA, err = n.mem.AllocDMA(len(b)); err != nil {
		return err
	}
	copy(s.data, b)
	s.add(s.dataIOVA, n.conf.Off+r.Bytes, uint32(len(b)))
	r.Bytes += uint64(len(b))
	r.Linear += uint64(len(b))
	return n.run(ctx, control.JobFromGuest, &s)
}

// tokenSet collects tokens as ranges.
type tokenSet struct{ ranges []devmem.TokenRange }

func (t *tokenSet) room() bool { return len(t.ranges) < devmem.MaxTokenRanges }

func (t *tokenSet) add(token uint32) {
	if k := len(t.ranges); k > 0 && t.ranges[k-1].Start+t.ranges[k-1].Count == token {
		t.ranges[k-1].Count++
		return
	}
	t.ranges = append(t.ranges, devmem.TokenRange{Start: token, Count: 1})
}

// receiveCopy reads into guest RAM, from where an engine copies to the GPU.
func (n *Node) receiveCopy(ctx context.Context, conn devmem.Conn, r *Result) error {
	p, cancel := n.newPipe(ctx)
	var jobs sync.WaitGroup
	defer jobs.Wait()
	defer cancel()
	stop := context.AfterFunc(p.ctx, func() { _ = conn.Close() })
	defer stop()
	for r.Bytes < n.conf.Len {
		s, err := p.take()
		if err != nil {
			return err
		}
		s.n = int(min(n.conf.Len-r.Bytes, stage))
		if _, err := io.ReadFull(conn, s.data[:s.n]); err != nil {
			return errors.Join(context.Cause(p.ctx), fmt.Errorf("read after %d of %d bytes: %w", r.Bytes, n.conf.Len, err))
		}
		s.add(s.dataIOVA, n.conf.Off+r.Bytes, uint32(s.n))
		r.Bytes += uint64(s.n)
		r.Jobs++
		jobs.Add(1)
		go func() {
			defer jobs.Done()
			if err := n.run(p.ctx, control.JobFromGuest, s); err != nil {
				p.fail(err)
				return
			}
			p.free <- s
		}()
	}
	return p.drain(len(n.staging))
}
