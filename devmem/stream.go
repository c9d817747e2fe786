package devmem

import (
	"context"
	"errors"
	"fmt"
	"io"
	"syscall"
)

const (
	// MaxFill is the largest number of bytes that [Stream.Fill] accepts.
	MaxFill = 64 << 10

	streamCall = 256 << 10 // most bytes that a call of RecvDevmem receives
)

// Stream is the receiving side of a connection. Its user copies the few bytes of a protocol's headers by Look, and
// moves the rest to its destination by Take; the Stream returns the tokens. Take itself copies data that has arrived
// in host memory.
//
// Data in device memory holds pages of the binding until it is taken and Flush is called: Take and Skip record moves
// and tokens; Flush makes the moves and returns the tokens. Before the Stream waits for bytes, it calls Flush.
//
// One goroutine at a time uses a Stream. To end the wait for bytes, close the connection or set its read deadline:
// contexts are only for Memory. After an error of the connection other than io.EOF, or an error of Memory, the Stream
// must not be used any more.
type Stream struct {
	c    Conn
	m    Memory
	pool Buffer

	frags  []Frag
	linear []byte // for bytes that arrive in host memory; nil: receive reuses lent or allocates a slice
	lent   []byte // the last linear that received bytes, to which pieces may refer

	pieces []piece // pieces[first:] are received and not taken
	first  int
	n      uint64 // bytes in pieces

	to     Buffer // destination of the moves
	moves  []Move
	tokens Tokens // to be returned after the moves

	host uint64
}

type piece struct {
	host  []byte // nil: the piece is in the pool
	off   uint64 // offset in the pool, if host is nil
	n     uint64
	token uint32
}

// NewStream returns a Stream. pool is the buffer of the receive binding to which a flow rule steers the connection;
// nil: no rule does.
func NewStream(c Conn, m Memory, pool Buffer) *Stream {
	return &Stream{c: c, m: m, pool: pool, frags: make([]Frag, MaxFrags)}
}

// Len returns how many received bytes are not taken.
func (s *Stream) Len() uint64 { return s.n }

// HostBytes returns how many bytes arrived in host memory.
func (s *Stream) HostBytes() uint64 { return s.host }

// Fill waits until at least n received bytes are not taken. If the stream ends before, Fill returns io.EOF if all
// received bytes are taken, else io.ErrUnexpectedEOF. Among its other errors are EMSGSIZE (n is above MaxFill) and
// EPROTO (lengths of fragments that do not add up, or a fragment in device memory without a pool).
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

func (s *Stream) receive(ctx context.Context) error {
	if s.first > 0 && s.first >= len(s.pieces)/2 { // else pieces would grow while some piece is not taken
		n := copy(s.pieces, s.pieces[s.first:])
		clear(s.pieces[n:])
		s.pieces, s.first = s.pieces[:n], 0
	}
	if s.linear == nil && len(s.pieces) == 0 {
		s.linear = s.lent
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

// check returns EINVAL if fewer than pos+n received bytes are not taken.
func (s *Stream) check(what string, pos, n uint64) error {
	if pos > s.n || n > s.n-pos {
		return fmt.Errorf("%s: bytes [%d, +%d) of %d that were received: %w", what, pos, n, s.n, syscall.EINVAL)
	}
	return nil
}

// Look copies to dst received bytes that are not taken, without taking them: from byte pos on, 0 being the first that
// is not taken. EINVAL: fewer bytes than pos+len(dst) are there; EFAULT: that sum exceeds 64 bits.
func (s *Stream) Look(ctx context.Context, dst []byte, pos uint64) error {
	return s.LookEach(ctx, dst, Strided{Off: pos, Len: len(dst), Count: 1})
}

// LookEach is Look for the pieces of each. It calls [Memory.Look] at most once.
func (s *Stream) LookEach(ctx context.Context, dst []byte, each Strided) error {
	if err := each.Check(len(dst)); err != nil {
		return fmt.Errorf("look: %w", err)
	}
	if len(dst) == 0 {
		return nil
	}
	last := each.Off + each.Stride*uint64(each.Count-1) // Check has excluded an overflow
	if err := errors.Join(s.check("look", each.Off, uint64(each.Len)),
		s.check("look", last, uint64(each.Len))); err != nil {
		return err
	}
	var ranges []Range
	var parts [][]byte // where each range goes in dst
	sum := uint64(0)   // length of all parts
	i, start := s.first, uint64(0)
	for k := range each.Count {
		pos := each.Off + each.Stride*uint64(k)
		if pos < start {
			i, start = s.first, 0
		}
		for to := dst[k*each.Len : (k+1)*each.Len]; len(to) > 0; {
			p := &s.pieces[i]
			if pos-start >= p.n {
				start += p.n
				i++
				continue
			}
			off := pos - start
			n := min(p.n-off, uint64(len(to)))
			if p.host != nil {
				copy(to[:n], p.host[off:])
			} else {
				ranges, parts = append(ranges, Range{p.off + off, n}), append(parts, to[:n])
				sum += n
			}
			to, pos = to[n:], pos+n
		}
	}
	if len(ranges) == 0 {
		return nil
	}
	seen := dst
	if sum < uint64(len(dst)) { // some bytes were in host memory, and are in dst already
		seen = make([]byte, sum)
	}
	if err := s.m.Look(ctx, seen, s.pool, ranges...); err != nil {
		return err
	}
	if sum < uint64(len(dst)) {
		for _, p := range parts {
			seen = seen[copy(p, seen):]
		}
	}
	return nil
}

// Take takes the next n bytes for dst, from offset off of dst on: they are there when Flush has returned nil. If the
// last Take had another dst, Take calls Flush first. Among its errors are EINVAL (fewer than n bytes are received and
// not taken) and EFAULT (the range is outside dst).
func (s *Stream) Take(ctx context.Context, dst Buffer, off, n uint64) error {
	if err := s.check("take", 0, n); err != nil {
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
		start := off
		off += k
		if p.host != nil {
			return s.m.Put(ctx, dst, start, p.host[:k])
		}
		if i := len(s.moves) - 1; i >= 0 && s.moves[i].Src+s.moves[i].Len == p.off && s.moves[i].Dst+s.moves[i].Len == start {
			s.moves[i].Len += k // the bytes continue the last move
			return nil
		}
		s.moves = append(s.moves, Move{Src: p.off, Dst: start, Len: k})
		return nil
	})
}

// Skip takes the next n bytes and drops them. EINVAL: fewer are received and not taken.
func (s *Stream) Skip(n uint64) error {
	if err := s.check("skip", 0, n); err != nil {
		return err
	}
	return s.take(n, func(*piece, uint64) error { return nil })
}

// take removes the next n bytes: before it removes bytes from a piece, it calls f with the piece and their number. An
// error of f ends take.
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

// Receive takes n bytes for dst, from offset off of dst on, as they arrive, and returns nil when all are in dst. It
// returns io.ErrUnexpectedEOF if the stream ends earlier.
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
		if s.tokens.Len() >= MaxFrags { // a small pool may have no free page left
			if err := s.Flush(ctx); err != nil {
				return err
			}
		}
		off, n = off+k, n-k
	}
	return s.Flush(ctx)
}

// Flush makes the moves that Take has recorded, and returns the tokens of fragments that are taken completely.
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
