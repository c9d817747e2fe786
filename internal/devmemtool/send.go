package devmemtool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"syscall"
	"time"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/limits"
)

const (
	maxIOV   = 1024    // ranges of one send with -z, at most, like ncdevmem's MAX_IOV
	sendSize = 1 << 18 // bytes of one send, at most
)

func (t *tool) sendAll(ctx context.Context) error {
	buf, err := t.register()
	if err != nil {
		return err
	}
	b, err := t.dev.BindTX(buf)
	if err != nil {
		return err
	}
	t.bound(b)
	to := netip.AddrPortFrom(t.server.Addr(), t.port)
	t.say("Connect to %s (via %s)", to, t.dev.Name)
	dctx, cancel := t.untilPeer(ctx)
	c, err := DialAgain(dctx, func(ctx context.Context) (devmem.Conn, error) {
		return t.dev.Dial(ctx, netip.AddrPortFrom(t.client.Addr(), t.port), to)
	}, func(err error) {
		if t.peer == 0 {
			t.say("%v: trying again, without end (-w 0)", err)
		} else {
			t.say("%v: trying again, for %v (-w)", err, t.peer)
		}
	})
	cancel()
	if err != nil {
		return err
	}
	var whole bool
	t.using(ctx, c, &whole)
	s := &sender{tool: t, conn: c, binding: b.ID(), buffer: buf, size: sendSize}
	if t.chunk > 0 {
		s.size = min(s.size, t.chunk*maxIOV)
	}
	s.slots = uint32(max(1, min(64, buf.Size()/s.size)))
	s.size = min(s.size, buf.Size())
	var in = t.std.In
	if t.bytes > 0 {
		in = io.LimitReader(&patternReader{pattern: pattern{t.pattern}}, int64(t.bytes))
	}
	err = s.loop(ctx, in)
	t.say("total_sent=%d", s.total)
	if err != nil {
		return err
	}
	if err := t.closeBoth(c); err != nil {
		return err
	}
	whole = true
	t.say("devmem: tx ok")
	return nil
}

// closeBoth closes our end and waits, at most limits.CloseWait, for the peer's: with vnic's stack, nothing retransmits
// a lost FIN once the tool has closed its device.
func (t *tool) closeBoth(c devmem.Conn) error {
	if err := errors.Join(c.CloseWrite(), c.SetReadDeadline(time.Now().Add(limits.CloseWait.Here()))); err != nil {
		return err
	}
	for b := make([]byte, 4096); ; {
		_, err := c.Read(b)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			t.say("the peer has not closed its end")
			return nil
		case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET):
			return nil
		case err != nil:
			return err
		}
	}
}

// sender copies pieces of a stream to the slots of its buffer in turn, and sends them from there.
type sender struct {
	*tool
	conn    devmem.Conn
	binding uint32
	buffer  devmem.Buffer
	size    uint64
	slots   uint32
	calls   uint32 // of SendDevmem, that sent all their bytes
	done    uint32 // complete calls, up to the first incomplete one
	early   []bool // early[i]: call done+i is complete
	ranges  []devmem.Range
	total   uint64
}

func (s *sender) loop(ctx context.Context, in io.Reader) error {
	b := make([]byte, s.size)
	for {
		n, rerr := in.Read(b)
		if n > 0 {
			if err := s.wait(s.slots - 1); err != nil {
				return err
			}
			if err := s.put(ctx, b[:n]); err != nil {
				return err
			}
		}
		if errors.Is(rerr, io.EOF) {
			return s.wait(0)
		}
		if rerr != nil {
			return fmt.Errorf("stdin: %w", rerr)
		}
	}
}

func (s *sender) put(ctx context.Context, b []byte) error {
	off := uint64(s.calls%s.slots) * s.size
	if err := s.dev.Memory.Put(ctx, s.buffer, off, b); err != nil {
		return fmt.Errorf("write device memory: %w", err)
	}
	s.ranges = s.ranges[:0]
	chunk := cmp.Or(s.chunk, s.size)
	for pos := uint64(0); pos < uint64(len(b)); pos += chunk {
		s.ranges = append(s.ranges, devmem.Range{Off: off + pos, Len: min(chunk, uint64(len(b))-pos)})
	}
	n, err := s.conn.SendDevmem(s.binding, s.ranges)
	s.total += uint64(n)
	if s.describe {
		s.say("sendmsg_ret=%d", n)
	}
	if err != nil {
		return err
	}
	if n != len(b) {
		return fmt.Errorf("did not send all bytes: %d of %d", n, len(b))
	}
	s.calls++
	return nil
}

func (s *sender) wait(open uint32) error {
	for s.calls-s.done > open {
		lo, hi, err := s.conn.ReadCompletion(time.Time{})
		if err != nil {
			return err
		}
		if s.describe {
			s.say("tx complete [%d,%d]", lo, hi)
		}
		if hi < lo || lo < s.done || hi >= s.calls {
			return fmt.Errorf("completion of sends %d to %d: %d to %d were open", lo, hi, s.done, s.calls-1)
		}
		for uint32(len(s.early)) <= hi-s.done {
			s.early = append(s.early, false)
		}
		for i := lo; i <= hi; i++ {
			s.early[i-s.done] = true
		}
		for len(s.early) > 0 && s.early[0] {
			s.early = s.early[1:]
			s.done++
		}
	}
	return nil
}

type patternReader struct {
	pattern
	pos uint64
}

func (p *patternReader) Read(b []byte) (int, error) {
	p.fill(b, p.pos)
	p.pos += uint64(len(b))
	return len(b), nil
}
