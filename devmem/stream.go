package devmem

import (
	"context"
	"errors"
	"fmt"
	"io"
	"syscall"
)

const (
	// MaxFill is how many bytes [Stream.Fill] waits for at most: enough for the head of any message.
	MaxFill = 64 << 10

	streamCall = 256 << 10 // bytes that a call of RecvDevmem may give
)

// Stream is the receiving side of a connection, taken message by message: the few bytes that a protocol's heads have
// are looked at where they lie, the rest is gathered to where it belongs, and tokens go back. It makes no difference
// to its user how the stream lies in fragments, whether a head straddles two of them, and whether bytes came in device
// memory at all: of a connection that no rule steers all are put to their places from host memory.
//
// What was received and not taken holds pages of the binding. Take and Skip only note what is to be done; Flush does
// it, in one call of [Memory.Gather], and gives the pages back. Receiving does so by itself before it waits, so that
// nobody waits for pages that the Stream holds.
//
// One goroutine uses a Stream. The contexts are Memory's: who wants to end the wait for bytes closes the connection or
// sets its read deadline. After an error that is the connection's or Memory's the Stream is of no use any more.
//
// Cost: descriptions of 1024 fragments, 256 KiB for bytes in host memory, and what lies in the pool.
type Stream struct {
	c    Conn
	m    Memory
	pool Buffer

	frags  []Frag
	linear []byte // room for host memory; nil: what came lies in lent
	lent   []byte // pieces may lie in it

	pieces []piece // pieces[first:] were not taken
	first  int
	n      uint64 // bytes of these

	to     Buffer // of moves
	moves  []Move
	tokens Tokens // to be given back when the moves are done

	host uint64
}

// piece is a piece of what was received.
type piece struct {
	host  []byte // in host memory, all of it; nil: in the pool
	off   uint64 // in the pool
	n     uint64
	token uint32
}

// NewStream makes a Stream of a connection, which stays the caller's. Pool is the buffer that the queue is bound to
// which the connection is steered to, or nil for a connection that is not steered.
func NewStream(c Conn, m Memory, pool Buffer) *Stream {
	return &Stream{c: c, m: m, pool: pool, frags: make([]Frag, MaxFrags)}
}

// Len is how many bytes were received and not taken.
func (s *Stream) Len() uint64 { return s.n }

// HostBytes is how many bytes came in host memory since the Stream was made.
func (s *Stream) HostBytes() uint64 { return s.host }

// Fill waits until there are n bytes at least. Errors: EMSGSIZE (more than MaxFill); io.EOF where the stream has ended
// with no byte left, io.ErrUnexpectedEOF where some are, but not n; those of [Conn.RecvDevmem], Memory's, EPROTO
// (fragments that do not add up).
func (s *Stream) Fill(ctx context.Context, n int) error {
	if n > MaxFill {
		return fmt.Errorf("fill: %d bytes, %d at most: %w", n, MaxFill, syscall.EMSGSIZE)
	}
	for n > 0 && s.n < uint64(n) {
		if err := s.receive(ctx); err != nil {
			if errors.Is(err, io.EOF) && s.n > 0 {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
	}
	return nil
}

// receive adds what a call gives.
func (s *Stream) receive(ctx context.Context) error {
	if s.first > 0 && s.first >= len(s.pieces)/2 { // or they would grow for as long as a peer leaves half a head
		n := copy(s.pieces, s.pieces[s.first:])
		clear(s.pieces[n:])
		s.pieces, s.first = s.pieces[:n], 0
	}
	if len(s.pieces) == 0 {
		if s.linear == nil {
			s.linear = s.lent
		}
	}
	if s.linear == nil {
		s.linear = make([]byte, streamCall)
	}
	n, nf, nl, err := s.c.RecvDevmem(s.frags, s.linear, DontWait)
	if errors.Is(err, syscall.EAGAIN) {
		if err := s.Flush(ctx); err != nil {
			return err
		}
		n, nf, nl, err = s.c.RecvDevmem(s.frags, s.linear, 0)
	}
	if err != nil {
		return err
	}
	if n == 0 {
		return io.EOF
	}
	host, rest := s.linear[:nl], uint64(n)
	if nl > 0 {
		s.linear, s.lent = nil, s.linear
		s.host += uint64(nl)
	}
	if nf == 0 {
		s.add(piece{host: host, n: uint64(nl)})
		rest -= uint64(nl)
	}
	for _, f := range s.frags[:nf] {
		size := uint64(f.Size)
		if size == 0 || size > rest || f.Kind == Linear && size > uint64(len(host)) || f.Kind == Dmabuf && s.pool == nil {
			return fmt.Errorf("receive: fragment %+v of %d bytes: %w", f, n, syscall.EPROTO)
		}
		rest -= size
		if f.Kind == Linear {
			s.add(piece{host: host[:size], n: size})
			host = host[size:]
			continue
		}
		s.add(piece{off: f.Off, n: size, token: f.Token})
	}
	if rest != 0 {
		return fmt.Errorf("receive: %d of %d bytes are in no fragment: %w", rest, n, syscall.EPROTO)
	}
	return nil
}

func (s *Stream) add(p piece) {
	s.pieces = append(s.pieces, p)
	s.n += p.n
}

// here says what is wrong with n bytes from the at-th on.
func (s *Stream) here(what string, at, n uint64) error {
	if at > s.n || n > s.n-at {
		return fmt.Errorf("%s: bytes [%d, +%d) of %d that were received: %w", what, at, n, s.n, syscall.EINVAL)
	}
	return nil
}

// Look copies bytes that were received and not taken to dst, from the at-th on, and takes none. EINVAL: there are
// fewer.
func (s *Stream) Look(ctx context.Context, dst []byte, at uint64) error {
	return s.LookEach(ctx, dst, Strided{Off: at, Len: len(dst), Count: 1})
}

// LookEach is Look for pieces, as the heads of messages of one length: all of them in one call of [Memory.Look].
func (s *Stream) LookEach(ctx context.Context, dst []byte, each Strided) error {
	if err := each.Check(len(dst)); err != nil {
		return fmt.Errorf("look: %w", err)
	}
	if len(dst) == 0 {
		return nil
	}
	last := each.Off + each.Stride*uint64(each.Count-1) // Check has seen that this is no more than there can be
	if err := errors.Join(s.here("look", each.Off, uint64(each.Len)), s.here("look", last, uint64(each.Len))); err != nil {
		return err
	}
	var ranges []Range
	var parts [][]byte // of dst, one for each range
	i, start := s.first, uint64(0)
	for k := range each.Count {
		at := each.Off + each.Stride*uint64(k)
		if at < start {
			i, start = s.first, 0
		}
		for to := dst[k*each.Len : (k+1)*each.Len]; len(to) > 0; {
			p := &s.pieces[i]
			if at-start >= p.n {
				start += p.n
				i++
				continue
			}
			off := at - start
			n := min(p.n-off, uint64(len(to)))
			if p.host != nil {
				copy(to[:n], p.host[off:])
			} else {
				ranges, parts = append(ranges, Range{p.off + off, n}), append(parts, to[:n])
			}
			to, at = to[n:], at+n
		}
	}
	if len(ranges) == 0 {
		return nil
	}
	sum := 0
	for _, p := range parts {
		sum += len(p)
	}
	seen := dst
	if sum < len(dst) { // some of it came in host memory
		seen = make([]byte, sum)
	}
	if err := s.m.Look(ctx, seen, s.pool, ranges...); err != nil {
		return err
	}
	if sum < len(dst) {
		for _, p := range parts {
			seen = seen[copy(p, seen):]
		}
	}
	return nil
}

// Take takes the next n bytes, which are to go to dst from offset off on: they are there when Flush returns. Errors:
// EINVAL (fewer were received), Memory's.
func (s *Stream) Take(ctx context.Context, dst Buffer, off, n uint64) error {
	if err := s.here("take", 0, n); err != nil {
		return err
	}
	if size := dst.Size(); off > size || n > size-off {
		return fmt.Errorf("take: [%#x, +%#x) of a buffer of %#x bytes: %w", off, n, size, syscall.EFAULT)
	}
	if s.to != dst {
		if err := s.Flush(ctx); err != nil {
			return err
		}
		s.to = dst
	}
	return s.take(n, func(p *piece, k uint64) error {
		at := off
		off += k
		if p.host != nil {
			return s.m.Put(ctx, dst, at, p.host[:k])
		}
		if i := len(s.moves) - 1; i >= 0 && s.moves[i].Src+s.moves[i].Len == p.off && s.moves[i].Dst+s.moves[i].Len == at {
			s.moves[i].Len += k // as pages that lie behind each other
			return nil
		}
		s.moves = append(s.moves, Move{Src: p.off, Dst: at, Len: k})
		return nil
	})
}

// Skip takes the next n bytes to nowhere. EINVAL: fewer were received.
func (s *Stream) Skip(n uint64) error {
	if err := s.here("skip", 0, n); err != nil {
		return err
	}
	return s.take(n, func(*piece, uint64) error { return nil })
}

// take takes n bytes that are there.
func (s *Stream) take(n uint64, f func(p *piece, k uint64) error) error {
	for n > 0 {
		p := &s.pieces[s.first]
		k := min(n, p.n)
		if err := f(p, k); err != nil {
			return err
		}
		if p.host != nil {
			p.host = p.host[k:]
		} else {
			p.off += k
		}
		p.n, s.n, n = p.n-k, s.n-k, n-k
		if p.n > 0 {
			continue
		}
		if p.host == nil {
			s.tokens.Add(p.token)
		}
		*p = piece{}
		s.first++
	}
	return nil
}

// Receive takes n bytes as they come, and returns when they are at their place. Errors: those of Fill and Take;
// io.ErrUnexpectedEOF where the stream ends before.
func (s *Stream) Receive(ctx context.Context, dst Buffer, off, n uint64) error {
	for n > 0 {
		if err := s.Fill(ctx, 1); err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
		k := min(n, s.n)
		if err := s.Take(ctx, dst, off, k); err != nil {
			return err
		}
		if s.tokens.Len() >= MaxFrags { // the pool may be small
			if err := s.Flush(ctx); err != nil {
				return err
			}
		}
		off, n = off+k, n-k
	}
	return s.Flush(ctx)
}

// Flush brings what was taken to its place, and gives its tokens back. Errors: Memory's, [Tokens.GiveBack]'s.
func (s *Stream) Flush(ctx context.Context) error {
	if len(s.moves) > 0 {
		moves := s.moves
		s.moves = s.moves[:0]
		if err := s.m.Gather(ctx, s.to, s.pool, moves); err != nil {
			return err
		}
	}
	if s.tokens.Len() == 0 {
		return nil
	}
	return s.tokens.GiveBack(s.c)
}
