package devmem

import (
	"context"
	"fmt"
	"syscall"
	"time"
)

// senderCall is the most bytes that Send copies through host memory at a time.
const senderCall = 256 << 10

// Sender sends messages on a connection, and in Wait waits until their memory may change. Its user may call
// [Conn.Write] in between. One goroutine at a time uses a Sender, and only the Sender may call SendDevmem and
// ReadCompletion of the connection.
type Sender struct {
	c    Conn
	m    Memory
	host []byte

	sent, completed uint32 // how many calls of SendDevmem queued bytes, modulo 2^32, and how many of these are complete
}

// NewSender returns a Sender; m is used only to send through host memory.
func NewSender(c Conn, m Memory) *Sender { return &Sender{c: c, m: m} }

// Send sends [off, off+n) of a buffer: by tx, the buffer's transmit binding, or if tx is nil through host
// memory. ctx can end only the copy to host memory. If the range is outside the buffer, Send sends nothing and
// returns EFAULT. With other errors it may have sent a part.
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

// Wait waits until the memory that Send has sent from may change, or returns ReadCompletion's error.
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
