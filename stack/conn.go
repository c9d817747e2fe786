package stack

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/gpumem"
	"vnic.dev/vnic/internal/deadline"
	"vnic.dev/vnic/internal/devmembase"
	"vnic.dev/vnic/internal/ether"
)

// Conn implements devmem.Conn.
type Conn struct {
	s             *Stack
	f             *flow
	ep            tcpip.Endpoint
	wq            *waiter.Queue
	entry         waiter.Entry
	local, remote *net.TCPAddr
	tokens        gpumem.Tokens

	rd, wd *deadline.Deadline
	stall  atomic.Int64 // the stall limit in nanoseconds; 0: none
	closed chan struct{}
	once   sync.Once

	rmu  sync.Mutex // one reader at a time
	sink sink
	drop []pending
	rsig chan struct{}

	wmu    sync.Mutex // one writer at a time
	reader bytes.Reader
	wsig   chan struct{}

	cmu  sync.Mutex // one reader of completions at a time
	csig chan struct{}
}

var _ devmem.Conn = (*Conn)(nil)

// newConn makes a Conn that owns an endpoint, which is or was connected, and its waiter queue. With an error it aborts
// the endpoint.
func (s *Stack) newConn(ep tcpip.Endpoint, wq *waiter.Queue) (*Conn, error) {
	c := &Conn{
		s: s, ep: ep, wq: wq, rd: deadline.New(), wd: deadline.New(), closed: make(chan struct{}),
		rsig: make(chan struct{}, 1), wsig: make(chan struct{}, 1), csig: make(chan struct{}, 1),
	}
	l, lerr := ep.GetLocalAddress()
	r, rerr := ep.GetRemoteAddress()
	if lerr != nil || rerr != nil {
		ep.Abort()
		return nil, syscall.ECONNABORTED
	}
	c.local, c.remote = tcpAddr(l), tcpAddr(r)
	if c.f = s.flows.claim(keyOf(l, r), c); c.f == nil {
		ep.Abort()
		return nil, fmt.Errorf("more than %d connections wait to be accepted: %w", maxUnowned, syscall.ENOBUFS)
	}
	if !s.conns.Add(c, nil) {
		releaseAll(c.f.stop(c))
		ep.Abort()
		return nil, net.ErrClosed
	}
	ep.SocketOptions().SetDelayOption(false)
	c.fitWindow()
	c.entry.Init(c, waiter.ReadableEvents|waiter.WritableEvents|waiter.EventErr|waiter.EventHUp|waiter.EventRdHUp)
	wq.EventRegister(&c.entry)
	c.NotifyEvent(waiter.EventHUp) // the connection may have ended before EventRegister
	return c, nil
}

// fitWindow limits the receive buffer, which is twice the window, to what the pool can hold, if the handshake
// came through a bound queue (not with Options.WideWindow): otherwise the NIC drops segments that the peer may
// send. With a NIC that receives GSO packets of this IP version, pages count as half full. The limit cannot be set
// later: netstack deadlocks when a buffer shrinks while data is out of order.
func (c *Conn) fitWindow() {
	c.f.mu.Lock()
	queue := c.f.queue
	c.f.mu.Unlock()
	l := c.s.rx[queue].Load()
	if l == nil || c.s.wide {
		return
	}
	page := int(c.s.link.MTU()) - 52 // less IPv4 and TCP headers with timestamps
	if o := c.s.nic.Offloads(); c.f.key.IPv6 && o.RxTSO6 || !c.f.key.IPv6 && o.RxTSO4 {
		page = pageSize / 2
	}
	if n := l.binding.pool.Window(page); n < c.s.maxRecv {
		c.ep.SocketOptions().SetReceiveBufferSize(int64(n), true)
	}
}

// NotifyEvent implements waiter.EventListener. The caller may hold locks of netstack.
func (c *Conn) NotifyEvent(mask waiter.EventMask) {
	if mask&(waiter.ReadableEvents|waiter.EventErr|waiter.EventHUp|waiter.EventRdHUp) != 0 {
		ether.Signal(c.rsig)
	}
	if mask&(waiter.WritableEvents|waiter.EventErr|waiter.EventHUp) != 0 {
		ether.Signal(c.wsig)
	}
	if mask&(waiter.EventErr|waiter.EventHUp) != 0 {
		switch tcp.EndpointState(c.ep.State()) {
		case tcp.StateClose, tcp.StateError:
			c.f.end()
		}
	}
}

// wait waits for sig. It returns an error if the Conn is closed, d is closed (a deadline), or the connection makes no
// progress for the stall limit.
func (c *Conn) wait(op string, sig <-chan struct{}, d <-chan struct{}) error {
	limit := time.Duration(c.stall.Load())
	var start since
	s := devmembase.Stall{Limit: limit, Progress: c.f.progress,
		Tick: func(idle time.Duration) {
			if idle == 0 {
				start = c.since()
			} else if idle <= limit/2 {
				start.half = c.since().heard
			}
		},
		Stalled: func(idle time.Duration) error { return c.stalled(op, idle, start) }}
	return s.Wait(sig, c.closed, d)
}

// failure returns the error of a call for which netstack returned err.
func (c *Conn) failure(err tcpip.Error) error {
	if err := c.s.failed(); err != nil {
		return err
	}
	if c.isClosed() {
		return net.ErrClosed
	}
	return errno(err)
}

func (c *Conn) isClosed() bool { return devmembase.IsClosed(c.closed) }

func (c *Conn) over(d <-chan struct{}) error {
	switch {
	case c.isClosed():
		return net.ErrClosed
	case devmembase.IsClosed(d):
		return os.ErrDeadlineExceeded
	}
	return nil
}

// Read implements net.Conn.
func (c *Conn) Read(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	c.rmu.Lock()
	defer c.rmu.Unlock()
	c.sink = sink{c: c, mode: plain, linear: b, room: len(b)}
	n, err := c.receive("read", 0)
	c.s.count.rxLinear.Add(uint64(n))
	return n, c.opError("read", err)
}

// Write implements net.Conn.
func (c *Conn) Write(b []byte) (int, error) {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	defer c.reader.Reset(nil)
	done := 0
	for done < len(b) {
		n, err := c.room("write", len(b)-done)
		if err == nil {
			c.reader.Reset(b[done : done+n])
			n, err = c.put("write", &c.reader)
			done += n
			c.f.wrote(n)
			c.s.count.txLinear.Add(uint64(n))
		}
		if err != nil {
			return done, c.opError("write", err)
		}
	}
	return done, nil
}

// Close implements net.Conn.
func (c *Conn) Close() error {
	err := net.ErrClosed
	c.once.Do(func() {
		err = nil
		close(c.closed) // wakes readers and writers
		c.ep.Close()
		c.rmu.Lock() // a reader may still be issuing tokens
		releaseAll(c.f.stop(c))
		c.tokens.Close()
		c.rmu.Unlock()
		c.s.conns.Remove(c)
		c.s.flows.sweepSoon()
	})
	return c.opError("close", err)
}

// CloseWrite implements devmem.Conn.
func (c *Conn) CloseWrite() error {
	if c.isClosed() {
		return c.opError("close", net.ErrClosed)
	}
	if err := c.ep.Shutdown(tcpip.ShutdownWrite); err != nil {
		return c.opError("shutdown", c.failure(err))
	}
	return nil
}

// SetLinger implements devmem.Conn.
func (c *Conn) SetLinger(sec int) error {
	c.ep.SocketOptions().SetLinger(tcpip.LingerOption{Enabled: sec >= 0,
		Timeout: time.Duration(max(sec, 0)) * time.Second})
	return nil
}

// DontNeed implements devmem.Conn.
func (c *Conn) DontNeed(ranges []devmem.TokenRange) (freed int, err error) {
	if len(ranges) == 0 || len(ranges) > devmem.MaxTokenRanges {
		return 0, c.opError("dontneed", syscall.EINVAL)
	}
	var rs [devmem.MaxTokenRanges]gpumem.TokenRange
	for i, r := range ranges {
		rs[i] = gpumem.TokenRange(r)
	}
	return c.tokens.Put(rs[:len(ranges)], devmem.MaxFrags), nil
}

// LocalAddr implements net.Conn.
func (c *Conn) LocalAddr() net.Addr { return c.local }

// RemoteAddr implements net.Conn.
func (c *Conn) RemoteAddr() net.Addr { return c.remote }

// SetDeadline implements net.Conn.
func (c *Conn) SetDeadline(t time.Time) error { c.rd.Set(t); c.wd.Set(t); return c.settable() }

// SetReadDeadline implements net.Conn; it applies to RecvDevmem too.
func (c *Conn) SetReadDeadline(t time.Time) error { c.rd.Set(t); return c.settable() }

// SetWriteDeadline implements net.Conn; it applies to SendDevmem too.
func (c *Conn) SetWriteDeadline(t time.Time) error { c.wd.Set(t); return c.settable() }

func (c *Conn) settable() error {
	if c.isClosed() {
		return c.opError("set", net.ErrClosed)
	}
	return nil
}

// State implements devmem.Conn.
func (c *Conn) State() string {
	var info tcpip.TCPInfoOption
	c.ep.GetSockOpt(&info)
	unread, _ := c.ep.GetSockOptInt(tcpip.ReceiveQueueSizeOption)
	f := c.f
	f.mu.Lock()
	defer f.mu.Unlock()
	var peerShift uint8
	if f.scale[0] >= 0 && f.scale[1] >= 0 {
		peerShift = uint8(f.scale[1])
	}
	return fmt.Sprintf("%v %v->%v snd{iss %d una %d nxt %d written %d wnd %d sends %d cwnd %d ssthresh %d rto %v rtt %v} "+
		"rcv{irs %d acked %d ahead %d read %d unread %d wnd %d kept %d frames %d pages}",
		tcp.EndpointState(c.ep.State()), c.local, c.remote,
		f.iss, f.una, f.nxt, f.written, f.wnd<<peerShift, f.sends.len(), info.SndCwnd, info.SndSsthresh, info.RTO, info.RTT,
		f.irs, f.acked, f.ahead, f.read, unread, f.adv<<f.shift(), f.pending.len(), f.pages)
}

var _ io.ReadWriteCloser = (*Conn)(nil)
