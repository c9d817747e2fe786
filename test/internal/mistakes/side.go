// Package mistakes has mistakes of devmem programs, each made by a side a or by its peer, side b, and a program that
// makes none. The errors of sides a are compared with docs/mistakes.md.
package mistakes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"time"

	"vnic.dev/vnic/devmem"
)

// Side is a program's device, with what a mistake needs to know and to do.
type Side struct {
	devmem.Device
	Addr, Peer    netip.Addr
	Queue, Queues int // a queue that can be bound; the number of queues
	GPU           int
	Size          uint64 // bytes of the GPU's memory that the program has
	Memory        devmem.Memory

	// Connect dials the peer, once it listens on port.
	Connect func(ctx context.Context, port uint16) (devmem.Conn, error)
	// Second opens the same device as a second program would.
	Second func() error
	// Crash ends the program as a fatal signal does.
	Crash func()
	// Stall is the stall limit of connections.
	Stall time.Duration
}

const (
	poolSize = 1 << 20 // of the receive pool, which begins at 0
	txOff    = poolSize
	txSize   = 1 << 20
)

// data returns the byte of the sent buffer at an offset. A stream that is longer than the buffer repeats it.
func data(off int) byte { return byte(off % 251) }

func (s *Side) bind() (devmem.Buffer, devmem.Binding, error) {
	buf, err := s.Register(s.GPU, 0, poolSize)
	if err != nil {
		return nil, nil, err
	}
	b, err := s.BindRX(buf, s.Queue)
	return buf, b, err
}

// listen binds the pool, steers the port to its queue if steer is set, and accepts a connection.
func (s *Side) listen(port uint16, steer bool) (devmem.Buffer, devmem.Conn, error) {
	buf, _, err := s.bind()
	if err != nil {
		return nil, nil, err
	}
	local := netip.AddrPortFrom(s.Addr, port)
	if steer {
		if _, err := s.AddFlow(devmem.Flow{Dst: local, Queue: s.Queue}); err != nil {
			return nil, nil, err
		}
	}
	c, err := s.accept(port)
	return buf, c, err
}

func (s *Side) accept(port uint16) (devmem.Conn, error) {
	l, err := s.Listen(netip.AddrPortFrom(s.Addr, port))
	if err != nil {
		return nil, err
	}
	defer func() { _ = l.Close() }()
	c, err := l.AcceptConn()
	if err == nil {
		c.SetStallLimit(s.Stall)
	}
	return c, err
}

func (s *Side) source() (devmem.Buffer, devmem.Binding, error) {
	buf, err := s.Register(s.GPU, txOff, txSize)
	if err != nil {
		return nil, nil, err
	}
	b := make([]byte, txSize)
	for i := range b {
		b[i] = data(i)
	}
	if err := s.Memory.Put(context.Background(), buf, 0, b); err != nil {
		return nil, nil, err
	}
	tx, err := s.BindTX(buf)
	return buf, tx, err
}

func (s *Side) connect(ctx context.Context, port uint16) (devmem.Binding, devmem.Conn, error) {
	_, tx, err := s.source()
	if err != nil {
		return nil, nil, err
	}
	c, err := s.Connect(ctx, port)
	if err == nil {
		c.SetStallLimit(s.Stall)
	}
	return tx, c, err
}

// piece is the number of bytes of one send.
const piece = 64 << 10

// send sends n bytes, a multiple of piece, and waits until they are acknowledged.
func send(c devmem.Conn, tx devmem.Binding, n int) error {
	calls := uint32(0)
	for sent := 0; sent < n; sent += piece {
		k, err := c.SendDevmem(tx.ID(), []devmem.Range{{Off: uint64(sent % txSize), Len: piece}})
		if err != nil {
			return err
		}
		if k != piece {
			return fmt.Errorf("%d bytes of %d were sent", k, piece)
		}
		calls++
	}
	for done := uint32(0); done < calls; {
		lo, hi, err := c.ReadCompletion(time.Time{})
		if err != nil {
			return err
		}
		done += hi - lo + 1
	}
	return nil
}

// receive receives n bytes, which must come in device memory, and checks them. hold keeps all tokens.
func (s *Side) receive(ctx context.Context, buf devmem.Buffer, c devmem.Conn, n int, hold bool) error {
	frags, linear, b := make([]devmem.Frag, 256), make([]byte, 256<<10), make([]byte, 256<<10)
	for got := 0; got < n; {
		k, nf, _, err := c.RecvDevmem(frags, linear, 0)
		if errors.Is(err, io.EOF) {
			return fmt.Errorf("%v has closed after %d of %d bytes: its program has ended: %w", c.RemoteAddr(), got, n,
				io.ErrUnexpectedEOF)
		}
		if err != nil {
			return err
		}
		if nf == 0 {
			return fmt.Errorf("%d bytes came in host memory: %s", k, cmp.Or(devmem.Diagnose(c), "nothing is known"))
		}
		var tokens devmem.Tokens
		for _, f := range frags[:nf] {
			if f.Kind != devmem.Dmabuf {
				return fmt.Errorf("%d bytes came in host memory beside device memory", f.Size)
			}
			if err := s.Memory.Get(ctx, b[:f.Size], buf, f.Off); err != nil {
				return err
			}
			for i := range int(f.Size) {
				if want := data((got + i) % txSize); b[i] != want {
					return fmt.Errorf("byte %d is %#x, not %#x", got+i, b[i], want)
				}
			}
			got += int(f.Size)
			tokens.Add(f.Token)
		}
		if !hold {
			if err := tokens.GiveBack(c); err != nil {
				return err
			}
		}
	}
	return nil
}

func drain(c devmem.Conn) (n int, err error) {
	b := make([]byte, 64<<10)
	for {
		k, err := c.Read(b)
		for i := range k {
			if want := data((n + i) % txSize); b[i] != want {
				return n, fmt.Errorf("byte %d is %#x, not %#x", n+i, b[i], want)
			}
		}
		n += k
		if errors.Is(err, io.EOF) {
			return n, nil
		}
		if err != nil {
			return n, err
		}
	}
}

// finishTime is how long finish waits for the peer's end, which may be lost.
const finishTime = 10 * time.Second

// finish closes a connection after the peer's end, an error, or finishTime.
func finish(c devmem.Conn) {
	_ = c.CloseWrite()
	_ = c.SetReadDeadline(time.Now().Add(finishTime))
	_, _ = drain(c)
	_ = c.Close()
}

// fill sends until a send has waited for fillTime, as the peer's window is full.
func fill(c devmem.Conn, tx devmem.Binding) (sent int, err error) {
	for {
		if err := c.SetWriteDeadline(time.Now().Add(fillTime)); err != nil {
			return sent, err
		}
		k, err := c.SendDevmem(tx.ID(), []devmem.Range{{Off: uint64(sent % txSize), Len: piece - uint64(sent%piece)}})
		sent += k
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return sent, c.SetWriteDeadline(time.Time{})
		}
		if err != nil {
			return sent, err
		}
	}
}

// fillTime is how long a send waits before the window counts as full.
const fillTime = 2 * time.Second
