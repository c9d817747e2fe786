package devmemtool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"

	"vnic.dev/vnic/devmem"
)

const (
	recvBytes = 819200 // of one call, like ncdevmem's iobuf
	recvFrags = 1024   // DontNeed returns no more tokens in one call
)

func (t *tool) receiveAll(ctx context.Context) error {
	local := netip.AddrPortFrom(t.server.Addr(), t.port)
	buf, err := t.bindQueues(local)
	if err != nil {
		return err
	}
	l, err := t.dev.Listen(local)
	if err != nil {
		return err
	}
	t.later("close listener", l.Close)
	t.say("Waiting for connection on %s", local)
	c, err := t.accept(ctx, l)
	if err != nil {
		return err
	}
	var whole bool
	t.using(ctx, c, &whole)
	t.say("Got connection from %s", c.RemoteAddr())
	r := &receiver{tool: t, conn: c, buffer: buf, frags: make([]devmem.Frag, recvFrags), linear: make([]byte, recvBytes),
		buf: make([]byte, recvBytes)}
	var check *validator
	r.out = t.std.Out
	if t.pattern > 0 {
		check = &validator{pattern: pattern{t.pattern}, out: t.std.Err}
		r.out = check
	}
	err = r.loop(ctx)
	t.say("total_received=%d", r.total)
	t.say("page_aligned_frags=%d, non_page_aligned_frags=%d, linear_received=%d", r.aligned, r.unaligned, r.inHost)
	if err != nil {
		return err
	}
	whole = true
	t.say("client exited")
	if check == nil {
		return nil
	}
	if err := check.err(); err != nil {
		return err
	}
	_, err = fmt.Fprintln(t.std.Out, "Validated buffer")
	return err
}

// accept waits for a connection, at most t.peer unless that is 0. With -c it resets connections that are not from that
// address and the port of -p.
func (t *tool) accept(ctx context.Context, l devmem.Listener) (devmem.Conn, error) {
	ctx, cancel := t.untilPeer(ctx)
	defer cancel()
	for {
		c, err := devmem.Accept(ctx, l)
		if err != nil || !t.client.IsValid() {
			return c, err
		}
		if a, ok := c.RemoteAddr().(*net.TCPAddr); ok && a.AddrPort().Addr().Unmap() == t.client.Addr() &&
			a.Port == int(t.port) {
			return c, nil
		}
		t.say("turned away %s", c.RemoteAddr())
		_ = c.SetLinger(0)
		_ = c.Close()
	}
}

// bindQueues binds device memory to receive queues, steers the flow to the first of them, and returns the
// memory. If RSS may spread over all queues (Device.Shared), bindQueues limits RSS to the queues below them.
func (t *tool) bindQueues(local netip.AddrPort) (devmem.Buffer, error) {
	if t.first < 0 {
		t.first, t.queues = t.dev.Queues-1, 1
	}
	if t.first < 1 || t.queues > t.dev.Queues-t.first {
		why := ""
		if t.first == 0 {
			why = "queue 0 is for what cannot be split: "
		}
		return nil, usageError{fmt.Errorf("-t %d -q %d: %s%s has receive queues 1 to %d to bind", t.first, t.queues, why,
			t.dev.Name, t.dev.Queues-1)}
	}
	var queues []int
	for i := range t.queues {
		queues = append(queues, t.first+i)
	}
	t.say("using queues %d..%d", queues[0], queues[len(queues)-1])
	if t.dev.Shared {
		if err := t.dev.SetRSS(t.first); err != nil {
			return nil, err
		}
	}
	buf, err := t.register()
	if err != nil {
		return nil, err
	}
	b, err := t.dev.BindRX(buf, queues...)
	if err != nil {
		return nil, err
	}
	t.bound(b)
	f := devmem.Flow{Dst: local, Queue: t.first}
	if t.client.IsValid() {
		f.Src = netip.AddrPortFrom(t.client.Addr(), t.port)
	}
	id, err := t.dev.AddFlow(f)
	if err != nil {
		return nil, err
	}
	t.later("flow rule", func() error { return t.dev.DelFlow(id) })
	return buf, nil
}

type receiver struct {
	*tool
	conn   devmem.Conn
	buffer devmem.Buffer
	out    io.Writer
	frags  []devmem.Frag
	linear []byte
	buf    []byte
	pieces []devmem.Range
	tokens devmem.Tokens

	total, inHost      uint64
	aligned, unaligned uint64
}

func (r *receiver) loop(ctx context.Context) error {
	for {
		n, nf, nl, err := r.conn.RecvDevmem(r.frags, r.linear, 0)
		if r.describe {
			r.say("recvmsg ret=%d", n)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if nf == 0 {
			why := cmp.Or(devmem.Diagnose(r.conn), "no queue that it came by is bound")
			return fmt.Errorf("flow steering error: %d bytes came in host memory: %s", nl, why)
		}
		if err := r.take(ctx, r.frags[:nf], r.linear[:nl]); err != nil {
			return err
		}
	}
}

func (r *receiver) take(ctx context.Context, frags []devmem.Frag, linear []byte) error {
	r.pieces = r.pieces[:0]
	r.tokens.Reset()
	n := 0
	for _, f := range frags {
		r.total += uint64(f.Size)
		if f.Kind == devmem.Linear {
			if r.describe {
				r.say("SCM_DEVMEM_LINEAR. dmabuf_cmsg->frag_size=%d", f.Size)
			}
			if r.inHost += uint64(f.Size); r.options.linear {
				return fmt.Errorf("%d bytes came in host memory (-L)", f.Size)
			}
			continue
		}
		if r.describe {
			r.say("received frag_page=%d, in_page_offset=%d, frag_offset=%d, frag_size=%d, token=%d, total_received=%d, "+
				"dmabuf_id=%d",
				f.Off/devmem.PageSize, f.Off%devmem.PageSize, f.Off, f.Size, f.Token, r.total, f.Binding)
		}
		if f.Size%devmem.PageSize == 0 {
			r.aligned++
		} else {
			r.unaligned++
		}
		r.pieces = append(r.pieces, devmem.Range{Off: f.Off, Len: uint64(f.Size)})
		r.tokens.Add(f.Token)
		n += int(f.Size)
	}
	device := r.buf[:n]
	if n > 0 {
		if err := r.dev.Memory.Look(ctx, device, r.buffer, r.pieces...); err != nil {
			return fmt.Errorf("read device memory: %w", err)
		}
	}
	if !r.hold {
		if err := r.tokens.GiveBack(r.conn); err != nil {
			return err
		}
	}
	for _, f := range frags {
		from := &device
		if f.Kind == devmem.Linear {
			from = &linear
		}
		if _, err := r.out.Write((*from)[:f.Size]); err != nil {
			return err
		}
		*from = (*from)[f.Size:]
	}
	return nil
}
