package plain

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/deadline"
	"vnic.dev/vnic/internal/devmembase"
)

const (
	// maxQueued: a connection does not begin to read from the socket while its queue has this many bytes or more.
	maxQueued = 1 << 20
	batch     = 32       // most pages that fill reads into at a time
	linearMax = 64 << 10 // most bytes that fill reads into host memory at a time
)

// chunk is n bytes from the socket that the user has not received yet: in one page of a binding, or in host memory.
type chunk struct {
	b    *binding // nil: the bytes are in host
	page uint32
	off  int // in the page, or in host
	n    int
	host []byte
}

// token is the page that an issued token refers to; b is nil if the token's number is not in use.
type token struct {
	b    *binding
	page uint32
}

// conn is a devmem.Conn. Its goroutine read reads the socket: into pages of the binding to which the rules steer
// the connection at that time, or into host memory if there is none or it is closed.
type conn struct {
	*net.TCPConn // its LocalAddr, RemoteAddr, CloseWrite and SetLinger are the conn's
	d            *Device
	raw          syscall.RawConn
	src, dst     netip.AddrPort // of received packets: src is the peer's

	mu     sync.Mutex
	closed bool
	queue  []chunk // queue[first:] has bytes for the user; elements before first are cleared
	first  int
	bytes  int
	err    error         // the error or io.EOF that ended read; await returns it once the queue is empty
	news   chan struct{} // notify closes and replaces it when read has queued bytes or ended, and in Close
	room   chan struct{} // closed when the queue has room again; nil: read does not wait for it
	tokens []token       // token number i is at index i-1
	low    int           // the numbers of all indexes below low are in use

	stallLimit    time.Duration
	writeDeadline time.Time

	readDeadline *deadline.Deadline

	sending sync.Mutex // held while Write or SendDevmem writes to the socket
	sends   sends
	ended   chan struct{}
}

// open makes a conn, which owns t, and starts its goroutine read. If open returns an error, it has closed t.
func (d *Device) open(t *net.TCPConn) (devmem.Conn, error) {
	raw, err := t.SyscallConn()
	if err != nil {
		return nil, errors.Join(err, t.Close())
	}
	c := &conn{TCPConn: t, d: d, raw: raw, src: devmembase.AddrPort(t.RemoteAddr()),
		dst: devmembase.AddrPort(t.LocalAddr()), readDeadline: deadline.New(),
		news: make(chan struct{}), ended: make(chan struct{})}
	if !d.ends.Add(c, func() { d.work.Go(c.read) }) {
		return nil, errors.Join(errClosed, t.Close())
	}
	return c, nil
}

// notify wakes waiting callers of await. The caller holds c.mu.
func (c *conn) notify() {
	close(c.news)
	c.news = make(chan struct{})
}

func (c *conn) read() {
	for {
		c.mu.Lock()
		for c.bytes >= maxQueued && !c.closed {
			c.room = make(chan struct{})
			room := c.room
			c.mu.Unlock()
			select {
			case <-room:
			case <-c.ended:
			}
			c.mu.Lock()
		}
		closed := c.closed
		c.mu.Unlock()
		if closed {
			return
		}
		more, err := c.fill()
		c.mu.Lock()
		if c.closed {
			c.mu.Unlock()
			release(more)
			return
		}
		for _, m := range more {
			c.bytes += m.n
		}
		c.queue = append(c.queue, more...)
		c.err = err
		c.notify()
		c.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// release drops the chunks' references to their pages.
func release(list []chunk) {
	for _, x := range list {
		if x.b != nil {
			x.b.unqueue(x.page)
		}
	}
}

func (c *conn) readable() (failed error) {
	err := c.raw.Read(func(fd uintptr) bool {
		var one [1]byte
		_, _, e := unix.Recvfrom(int(fd), one[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		failed = os.NewSyscallError("recvfrom", e) // Linux reports a socket's error to one call only: readv would miss it
		return e != unix.EAGAIN && e != unix.EINTR
	})
	return cmp.Or(err, failed)
}

// fill waits for bytes, the peer's FIN or an error of the socket, and reads some bytes to where the rules then steer
// them. If they are for a binding without a free page, it waits for one. It takes pages after these waits, so that
// a waiting connection holds none.
func (c *conn) fill() (list []chunk, err error) {
	for {
		if err := c.readable(); err != nil {
			return nil, err
		}
		var pages []uint32
		var room <-chan struct{}
		b := c.d.steered(c.src, c.dst)
		if b != nil {
			pages, room = b.take(batch)
		}
		if room != nil { // no page is free: a NIC would drop the packet
			c.d.drops.Add(1)
			select {
			case <-room:
			case <-c.ended:
				return nil, net.ErrClosed
			}
			continue
		}
		var to [][]byte
		for _, p := range pages {
			to = append(to, b.page(p))
		}
		var host []byte
		if pages == nil { // there is no binding, or it is closed
			host = make([]byte, linearMax)
			to = [][]byte{host}
		}
		n := 0
		if e := c.raw.Control(func(fd uintptr) { n, err = unix.Readv(int(fd), to) }); e != nil || err != nil {
			n, err = 0, cmp.Or(e, os.NewSyscallError("readv", err))
		} else if n == 0 {
			err = io.EOF
		}
		if pages == nil && n > 0 {
			list = append(list, chunk{n: n, host: bytes.Clone(host[:n])})
		}
		for _, p := range pages {
			k := min(n, devmem.PageSize)
			if k == 0 {
				b.unqueue(p)
				continue
			}
			list = append(list, chunk{b: b, page: p, n: k})
			n -= k
		}
		return list, err
	}
}

func (c *conn) wrap(op string, err error) error {
	return devmembase.OpError(op, err, c.LocalAddr(), c.RemoteAddr())
}

// await waits until the queue has a byte, and then returns nil with c.mu held. It returns an error without c.mu if
// the connection is closed, the read deadline has passed, read has ended and the queue is empty, or the wait stalls
// (SetStallLimit). With dontWait it returns EAGAIN, unwrapped, instead of waiting.
func (c *conn) await(op string, dontWait bool) error {
	for {
		c.mu.Lock()
		news, err := c.news, c.err
		switch {
		case c.closed:
			err = net.ErrClosed
		case devmembase.IsClosed(c.readDeadline.Wait()):
			err = os.ErrDeadlineExceeded
		case c.first < len(c.queue):
			return nil
		}
		c.mu.Unlock()
		if err == nil && dontWait {
			return syscall.EAGAIN
		}
		if err == nil {
			err = c.watch(op).Wait(news, c.ended, c.readDeadline.Wait())
		}
		if err != nil {
			return c.wrap(op, err)
		}
	}
}

// Read implements devmem.Conn.
func (c *conn) Read(b []byte) (n int, err error) {
	if err := c.await("read", false); err != nil {
		return 0, err
	}
	defer c.mu.Unlock()
	for n < len(b) && c.first < len(c.queue) && c.queue[c.first].b == nil {
		n += c.took(copy(b[n:], c.queue[c.first].host[c.queue[c.first].off:][:c.queue[c.first].n]))
	}
	if n == 0 && len(b) > 0 {
		return 0, c.wrap("read", syscall.EFAULT)
	}
	c.d.rxLinear.Add(uint64(n))
	return n, nil
}

// took removes n bytes from the first chunk of the queue, and returns n. The caller holds c.mu.
func (c *conn) took(n int) int {
	x := &c.queue[c.first]
	x.off, x.n, c.bytes = x.off+n, x.n-n, c.bytes-n
	if x.n == 0 {
		if x.b != nil {
			x.b.unqueue(x.page)
		}
		*x = chunk{}
		if c.first++; c.first == len(c.queue) {
			c.queue, c.first = c.queue[:0], 0
		}
	}
	if c.room != nil && c.bytes < maxQueued {
		close(c.room)
		c.room = nil
	}
	return n
}

// RecvDevmem implements devmem.Conn.
func (c *conn) RecvDevmem(frags []devmem.Frag, linear []byte, flags devmem.RecvFlags) (n, nfrags, nlinear int,
	err error) {
	if len(linear) == 0 {
		return 0, 0, 0, nil
	}
	if err := c.await("recv", flags&devmem.DontWait != 0); err != nil {
		return 0, 0, 0, err
	}
	defer c.mu.Unlock()
	peek, trunc := flags&devmem.Peek != 0, flags&devmem.Trunc != 0
	device := c.queue[c.first].b != nil
	i := c.first
	for i < len(c.queue) && n < len(linear) {
		x := c.queue[i]
		k := min(x.n, len(linear)-n)
		switch {
		case trunc:
		case (x.b != nil) != device:
			return n, nfrags, nlinear, nil
		case x.b == nil:
			nlinear += copy(linear[nlinear:], x.host[x.off:][:k])
		case nfrags == len(frags):
			if n == 0 {
				return 0, 0, 0, devmem.ErrTooSmall
			}
			return n, nfrags, nlinear, nil
		default:
			frags[nfrags] = devmem.Frag{Off: uint64(x.page)*devmem.PageSize + uint64(x.off), Size: uint32(k),
				Token: c.token(x.b, x.page), Binding: x.b.id, Kind: devmem.Dmabuf}
			nfrags++
		}
		n += k
		if peek {
			i++
			continue
		}
		if !trunc && x.b != nil {
			c.d.rxDevice.Add(uint64(k))
		} else if !trunc {
			c.d.rxLinear.Add(uint64(k))
		}
		c.took(k)
		i = c.first
	}
	return n, nfrags, nlinear, nil
}

// token issues a token for a page of b, and returns its number, the lowest not in use. The caller holds c.mu.
func (c *conn) token(b *binding, page uint32) uint32 {
	for c.low < len(c.tokens) && c.tokens[c.low].b != nil {
		c.low++
	}
	if c.low == len(c.tokens) {
		c.tokens = append(c.tokens, token{})
	}
	c.tokens[c.low] = token{b, page}
	b.hold(page)
	c.low++
	return uint32(c.low)
}

// DontNeed implements devmem.Conn.
func (c *conn) DontNeed(ranges []devmem.TokenRange) (freed int, err error) {
	if len(ranges) == 0 || len(ranges) > devmem.MaxTokenRanges {
		return 0, fmt.Errorf("%d ranges of tokens: 1 to %d: %w", len(ranges), devmem.MaxTokenRanges, syscall.EINVAL)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return 0, c.wrap("dontneed", net.ErrClosed)
	}
	looked := uint32(0)
	for _, r := range ranges {
		for i := uint32(0); i < r.Count && looked < devmem.MaxFrags; i++ {
			looked++
			if k := uint64(r.Start) + uint64(i); k >= 1 && k <= uint64(len(c.tokens)) && c.tokens[k-1].b != nil {
				c.free(int(k - 1))
				freed++
			}
		}
	}
	return freed, nil
}

// free takes back the issued token at index i of tokens. The caller holds c.mu.
func (c *conn) free(i int) {
	t := c.tokens[i]
	c.tokens[i], c.low = token{}, min(c.low, i)
	t.b.unhold(t.page)
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return c.wrap("close", net.ErrClosed)
	}
	c.closed = true
	rest := c.queue[c.first:]
	c.queue, c.first, c.bytes = nil, 0, 0
	for i := range c.tokens {
		if c.tokens[i].b != nil {
			c.free(i)
		}
	}
	close(c.ended)
	c.notify()
	c.mu.Unlock()
	release(rest)
	err := c.TCPConn.Close()
	c.d.ends.Remove(c)
	return err
}

// SetDeadline implements net.Conn.
func (c *conn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// SetReadDeadline implements net.Conn. It sets no deadline of the socket: the goroutine read waits
// without one.
func (c *conn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return c.wrap("set", net.ErrClosed)
	}
	c.readDeadline.Set(t)
	return nil
}

// State implements devmem.Conn.
func (c *conn) State() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	held := 0
	for _, t := range c.tokens {
		if t.b != nil {
			held++
		}
	}
	return fmt.Sprintf("%v to %v: %d bytes queued, %d tokens held, %d bytes not acknowledged, error %v", c.dst, c.src,
		c.bytes, held, c.unacknowledged(), c.err)
}

// ReadFrom replaces net.TCPConn's, which would bypass Write.
func (c *conn) ReadFrom(r io.Reader) (int64, error) { return io.Copy(struct{ io.Writer }{c}, r) }

// WriteTo replaces net.TCPConn's, which would read the socket.
func (c *conn) WriteTo(w io.Writer) (int64, error) { return io.Copy(w, struct{ io.Reader }{c}) }
