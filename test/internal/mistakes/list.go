package mistakes

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"vnic.dev/vnic/devmem"
)

// Mistake is a mistake of the list, or Right. Sides a and b run at the same time.
type Mistake struct {
	Name string // the heading in docs/mistakes.md, which has none for Right
	// A makes the mistake, or suffers from the mistake of its peer B, if there is one.
	A, B func(ctx context.Context, s *Side, port uint16) error
	Peer bool // B must not fail
}

// Right is the program that makes no mistake.
var Right = Mistake{Name: "the right program", Peer: true, A: receiver(4<<20, false), B: sender(4 << 20)}

// hang is the factor by which a side that hangs waits longer: the other side must end first.
const hang = 3

// List has the mistakes of docs/mistakes.md.
var List = []Mistake{
	{Name: "queue 0", A: func(_ context.Context, s *Side, _ uint16) error {
		buf, err := s.Register(s.GPU, 0, poolSize)
		if err != nil {
			return err
		}
		_, err = s.BindRX(buf, 0)
		return err
	}},
	{Name: "queue out of range", A: func(_ context.Context, s *Side, _ uint16) error {
		buf, err := s.Register(s.GPU, 0, poolSize)
		if err != nil {
			return err
		}
		if _, err := s.AddFlow(devmem.Flow{Dst: netip.AddrPortFrom(s.Addr, 1), Queue: s.Queues}); err == nil {
			return errors.New("a rule to a queue that is not there was taken")
		}
		_, err = s.BindRX(buf, s.Queues)
		return err
	}},
	{Name: "pool too big", A: func(_ context.Context, s *Side, _ uint16) error {
		_, err := s.Register(s.GPU, 0, s.Size+poolSize)
		return err
	}},
	{Name: "wrong binding id", Peer: true, A: func(ctx context.Context, s *Side, port uint16) error {
		_, rx, err := s.bind()
		if err != nil {
			return err
		}
		tx, c, err := s.connect(ctx, port)
		if err != nil {
			return err
		}
		r := []devmem.Range{{Len: piece}}
		if _, err := c.SendDevmem(rx.ID(), r); err == nil {
			return errors.New("a binding for receive was sent from")
		}
		_, err = c.SendDevmem(max(tx.ID(), rx.ID())+1, r)
		finish(c)
		return err
	}, B: func(_ context.Context, s *Side, port uint16) error {
		c, err := s.accept(port)
		if err != nil {
			return err
		}
		_, err = drain(c)
		finish(c)
		return err
	}},
	{Name: "flow not steered", A: func(ctx context.Context, s *Side, port uint16) error {
		buf, c, err := s.listen(port, false)
		if err != nil {
			return err
		}
		return s.receive(ctx, buf, c, piece, false)
	}, B: sender(piece)},
	{Name: "tokens never returned", A: receiver(4<<20, true), B: sender(4 << 20)},
	{Name: "one side crashes", A: func(ctx context.Context, s *Side, port uint16) error {
		buf, c, err := s.listen(port, true)
		if err != nil {
			return err
		}
		return s.receive(ctx, buf, c, 4<<20, false)
	}, B: func(ctx context.Context, s *Side, port uint16) error {
		tx, c, err := s.connect(ctx, port)
		if err != nil {
			return err
		}
		if err := send(c, tx, piece); err != nil {
			return err
		}
		s.Crash()
		return nil
	}},
	{Name: "one side hangs", Peer: true, A: receiver(4<<20, false), B: func(ctx context.Context, s *Side,
		port uint16) error {
		tx, c, err := s.connect(ctx, port)
		if err != nil {
			return err
		}
		if err := send(c, tx, piece); err != nil {
			return err
		}
		c.SetStallLimit(hang * s.Stall)
		_, _ = drain(c) // until the other side gives up
		return nil
	}},
	{Name: "one side hangs, and receives nothing", A: func(ctx context.Context, s *Side, port uint16) error {
		tx, c, err := s.connect(ctx, port)
		if err != nil {
			return err
		}
		return send(c, tx, 64<<20)
	}, Peer: true, B: func(_ context.Context, s *Side, port uint16) error {
		c, err := s.accept(port)
		if err != nil {
			return err
		}
		c.SetStallLimit(hang * s.Stall)
		for err = nil; err == nil; { // until the other side gives up, without a send in progress
			_, _, err = c.ReadCompletion(time.Time{})
		}
		return nil
	}},
	{Name: "one side never connects", A: waits, B: waits}, // both wait: neither must go on alone
	{Name: "nobody listens", A: func(ctx context.Context, s *Side, port uint16) error {
		c, err := s.Connect(ctx, port) // waits until the peer listens on port
		if err != nil {
			return err
		}
		_, err = s.Dial(ctx, netip.AddrPortFrom(s.Addr, 0), netip.AddrPortFrom(s.Peer, port+1))
		finish(c)
		return err
	}, Peer: true, B: func(_ context.Context, s *Side, port uint16) error {
		c, err := s.accept(port)
		if err != nil {
			return err
		}
		finish(c)
		return nil
	}},
	{Name: "two programs on one device", A: func(_ context.Context, s *Side, _ uint16) error { return s.Second() }},
	{Name: "freed buffer in flight", A: freed, Peer: true, B: func(_ context.Context, s *Side, port uint16) error {
		c, err := s.accept(port)
		if err != nil {
			return err
		}
		c.SetStallLimit(hang * s.Stall)
		freed, err := s.accept(port + 1) // a connects after it has closed its binding
		if err != nil {
			return err
		}
		n, err := drain(c)
		if err == nil && n < piece {
			err = fmt.Errorf("%d bytes came", n)
		}
		finish(c)
		_, _ = drain(freed) // until a knows that all bytes have arrived
		finish(freed)
		return err
	}},
}

func waits(_ context.Context, s *Side, port uint16) error {
	_, _, err := s.listen(port, true)
	return err
}

func receiver(n int, hold bool) func(context.Context, *Side, uint16) error {
	return func(ctx context.Context, s *Side, port uint16) error {
		buf, c, err := s.listen(port, true)
		if err != nil {
			return err
		}
		if err := s.receive(ctx, buf, c, n, hold); err != nil {
			return err
		}
		finish(c)
		return nil
	}
}

func sender(n int) func(context.Context, *Side, uint16) error {
	return func(ctx context.Context, s *Side, port uint16) error {
		tx, c, err := s.connect(ctx, port)
		if err != nil {
			return err
		}
		if err := send(c, tx, n); err != nil {
			return err
		}
		finish(c)
		return nil
	}
}

// freed closes a binding while sends from it are in progress, and also the buffer, which must be refused. It returns
// that refusal.
func freed(ctx context.Context, s *Side, port uint16) error {
	buf, tx, err := s.source()
	if err != nil {
		return err
	}
	c, err := s.Connect(ctx, port)
	if err != nil {
		return err
	}
	if _, err := fill(c, tx); err != nil {
		return err
	}
	if err := tx.Close(); err != nil {
		return err
	}
	inUse := buf.Close()
	if inUse == nil {
		return errors.New("a buffer was closed whose memory is sent")
	}
	if _, err := c.SendDevmem(tx.ID(), []devmem.Range{{Len: piece}}); err == nil {
		return errors.New("a binding that was closed was sent from")
	}
	second, err := s.Connect(ctx, port+1) // b then reads from c
	if err != nil {
		return errors.Join(inUse, err)
	}
	if err := c.CloseWrite(); err != nil {
		return errors.Join(inUse, err)
	}
	defer finish(second) // until this, b runs and acknowledges
	select {
	case <-tx.Done():
	case <-ctx.Done():
		return errors.Join(inUse, context.Cause(ctx))
	}
	finish(c)
	return errors.Join(inUse, buf.Close())
}
