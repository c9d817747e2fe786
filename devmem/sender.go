package devmem

import (
	"context"
	"fmt"
	"syscall"
	"time"
)

// senderCall is how much goes through host memory in one go.
const senderCall = 256 << 10

// Sender is the sending side of a connection: whole messages, and when their memory is free. Heads of messages, which
// are host memory's, go by [Conn.Write] in between. One goroutine uses a Sender, and only that calls ReadCompletion.
type Sender struct {
	c    Conn
	m    Memory
	host []byte

	sent, completed uint32 // calls of SendDevmem that went well, modulo 2^32; of these
}

// NewSender makes a Sender of a connection, which stays the caller's. m is for what goes through host memory.
func NewSender(c Conn, m Memory) *Sender { return &Sender{c: c, m: m} }

// Send sends all of [off, off+n) of a buffer: from device memory, by its binding for transmit, or without one through
// host memory, as a baseline (Memory.Get, Conn.Write). It may return before the peer has any of it: see Wait. Errors:
// EFAULT (outside of the buffer: nothing is sent), those of SendDevmem, Write and Memory, after which part was sent.
func (s *Sender) Send(ctx context.Context, b Buffer, tx Binding, off, n uint64) error {
	if size := b.Size(); off > size || n > size-off {
		return fmt.Errorf("send: [%#x, +%#x) of a buffer of %#x bytes: %w", off, n, size, syscall.EFAULT)
	}
	for n > 0 {
		var k int
		var err error
		if tx == nil {
			k, err = s.copied(ctx, b, off, n)
		} else {
			if k, err = s.c.SendDevmem(tx.ID(), []Range{{Off: off, Len: n}}); k > 0 {
				s.sent++
			}
		}
		if err != nil {
			return err
		}
		off, n = off+uint64(k), n-uint64(k)
	}
	return nil
}

// copied sends some bytes through host memory.
func (s *Sender) copied(ctx context.Context, b Buffer, off, n uint64) (int, error) {
	if s.host == nil {
		s.host = make([]byte, senderCall)
	}
	part := s.host[:min(n, senderCall)]
	if err := s.m.Get(ctx, part, b, off); err != nil {
		return 0, err
	}
	return s.c.Write(part)
}

// Wait waits until the peer has acknowledged all that was sent from device memory, which may change then. Its errors
// are ReadCompletion's.
func (s *Sender) Wait() error {
	for s.completed != s.sent {
		_, hi, err := s.c.ReadCompletion(time.Time{})
		if err != nil {
			return err
		}
		s.completed = hi + 1
	}
	return nil
}
