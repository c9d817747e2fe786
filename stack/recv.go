package stack

import (
	"errors"
	"io"
	"net"
	"syscall"

	"gvisor.dev/gvisor/pkg/tcpip"
	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/gpumem"
)

// errStop is the error with which the sink ends a read.
var errStop = errors.New("stop")

type sinkMode uint8

const (
	plain   sinkMode = iota // the mode of Read
	frags                   // of RecvDevmem without Trunc
	discard                 // of RecvDevmem with Trunc
)

// sink receives the slices that netstack delivers, in stream order. It copies only bytes in host memory.
type sink struct {
	c      *Conn
	mode   sinkMode
	room   int // bytes that the sink may still take
	linear []byte
	frags  []devmem.Frag
	nlin   int
	nfrags int
	pos    uint64 // stream position of the next byte
	began  bool
	device bool  // in mode frags, once began is set: the bytes taken are of packets with payload in device memory
	err    error // why take failed before the sink had taken a byte
}

// Write implements io.Writer: it takes as much of b as it can.
func (k *sink) Write(b []byte) (n int, err error) {
	for n < len(b) {
		if k.room == 0 {
			return n, errStop
		}
		m, err := k.take(b[n:])
		n += m
		k.room -= m
		k.pos += uint64(m)
		if err != nil {
			if n == 0 && !k.began {
				k.err = err
			}
			return n, errStop
		}
		k.began = true
	}
	return n, nil
}

// take takes at least one byte of b, or returns an error.
func (k *sink) take(b []byte) (int, error) {
	b = b[:min(len(b), k.room)]
	if k.mode == discard {
		return len(b), nil
	}
	l, slot, off := k.c.s.find(b)
	head, device := 0, l != nil
	if !device {
		head, device = k.c.f.headAt(k.pos)
	}
	if k.mode == plain {
		if device {
			return 0, syscall.EFAULT
		}
		return k.copy(b), nil
	}
	if k.began && device != k.device {
		return 0, errStop
	}
	k.device = device
	switch {
	case !device:
		return k.copy(b), nil
	case k.nfrags == len(k.frags):
		return 0, devmem.ErrTooSmall
	case l == nil:
		n := k.copy(b[:min(len(b), head)])
		k.frags[k.nfrags] = devmem.Frag{Kind: devmem.Linear, Size: uint32(n)}
		k.nfrags++
		return n, nil
	}
	return k.token(l, slot, off, len(b))
}

func (k *sink) copy(b []byte) int {
	n := copy(k.linear[k.nlin:], b)
	k.nlin += n
	return n
}

// token appends frags with tokens to k.frags for the bytes [off, off+n) of a slot, or for the first of them if k.frags
// has no room for more. It returns the number of bytes in these frags.
func (k *sink) token(l *shadowQueue, slot uint32, off, n int) (int, error) {
	var pages, tokens [gpumem.FramePages]uint32
	room := min(len(k.frags)-k.nfrags, len(pages))
	frags := k.frags[k.nfrags : k.nfrags+room]
	got, given := 0, 0
	for _, p := range l.slots[slot] {
		if given == room || got == n {
			break
		}
		if off >= int(p.Len) {
			off -= int(p.Len)
			continue
		}
		size := min(n-got, int(p.Len)-off)
		pages[given] = p.Page
		frags[given] = devmem.Frag{
			Kind: devmem.Dmabuf, Off: uint64(p.Page)*pageSize + uint64(p.Off) + uint64(off), Size: uint32(size),
			Binding: l.binding.id,
		}
		given++
		got += size
		off = 0
	}
	if given == 0 {
		return 0, syscall.EIO // the junk slot has no pages: netstack should not deliver it
	}
	if !k.c.tokens.Issue(l.binding.pool, pages[:given], tokens[:given]) {
		return 0, net.ErrClosed
	}
	for i := range given {
		frags[i].Token = tokens[i]
	}
	k.nfrags += given
	return got, nil
}

// receive reads from netstack into the sink. Under rmu.
func (c *Conn) receive(op string, flags devmem.RecvFlags) (int, error) {
	c.f.mu.Lock()
	c.sink.pos = c.f.read
	c.f.mu.Unlock()
	defer func() { c.sink.linear, c.sink.frags = nil, nil }()
	opts := tcpip.ReadOptions{Peek: flags&devmem.Peek != 0}
	d := c.rd.Wait()
	for {
		if err := c.over(d); err != nil {
			return 0, err
		}
		res, err := c.ep.Read(&c.sink, opts)
		switch err.(type) {
		case nil:
			if !opts.Peek {
				c.drop = c.f.advance(res.Count, c.drop[:0])
				releaseAll(c.drop)
				c.ep.ModerateRecvBuf(res.Count)
			}
			return res.Count, nil
		case *tcpip.ErrWouldBlock:
			if flags&devmem.DontWait != 0 {
				return 0, syscall.EAGAIN
			}
			if err := c.wait(op, c.rsig, d); err != nil {
				return 0, err
			}
		case *tcpip.ErrBadBuffer:
			return 0, c.sink.err
		case *tcpip.ErrClosedForReceive:
			return 0, c.end()
		default:
			return 0, c.failure(err)
		}
	}
}

// RecvDevmem implements devmem.Conn.
func (c *Conn) RecvDevmem(fs []devmem.Frag, linear []byte, flags devmem.RecvFlags) (n, nfrags, nlinear int, err error) {
	if len(linear) == 0 {
		return 0, 0, 0, nil
	}
	c.rmu.Lock()
	defer c.rmu.Unlock()
	c.sink = sink{c: c, mode: frags, linear: linear, frags: fs, room: len(linear)}
	if flags&devmem.Trunc != 0 {
		c.sink.mode = discard
	}
	n, err = c.receive("recv", flags)
	nfrags, nlinear = c.sink.nfrags, c.sink.nlin
	if c.sink.mode == frags {
		c.s.count.rxLinear.Add(uint64(nlinear))
		c.s.count.rxDevice.Add(uint64(n - nlinear))
	}
	return n, nfrags, nlinear, c.opError("recv", err)
}

// end returns the error of a read when netstack has no more bytes: io.EOF, unless the NIC has failed or the Conn is
// closed.
func (c *Conn) end() error {
	if c.s.failure.Load() != nil || c.isClosed() {
		return c.failure(nil)
	}
	return io.EOF
}
