package nbd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"vnic.dev/vnic/block"
	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/devmembase"
	"vnic.dev/vnic/internal/diagnosis"
	"vnic.dev/vnic/internal/limits"
)

// DefaultTimeout replaces a Config.Timeout of 0; on slow machines a longer time does.
const DefaultTimeout = time.Duration(limits.Silence)

const maxDepth = 1024

// Config names an export of a server, and the memory for its data.
type Config struct {
	Device devmem.Device
	Memory devmem.Memory // accesses the memory of Device's GPUs

	Server netip.AddrPort
	Export string     // name: at most 4096 bytes, none is 0; "": the server's default export
	Local  netip.Addr // local address; the zero Addr: Config.Device chooses

	// Queue is the receive queue for reads. RSS must not spread packets to it.
	Queue int
	Pool  devmem.Buffer // on Data's GPU; receives the replies to reads; Open binds it to Queue
	Data  devmem.Buffer // Op.Mem is an offset in Data

	Depth    int  // the most operations in progress, 1 to 1024
	ReadOnly bool // no connection for writes; Do fails a write with EROFS

	// Timeout limits, for each connection, connecting and the handshake together, then the time without progress
	// while operations wait, and at last the sending of NBD_CMD_DISC; 0 means DefaultTimeout, longer on slow machines.
	Timeout time.Duration

	// Copy moves payload through host memory, as a baseline for measurements; Pool and Queue are not used.
	Copy bool
}

func (c *Config) check() error {
	switch {
	case c.Device == nil || c.Memory == nil || c.Data == nil || c.Pool == nil && !c.Copy:
		return fmt.Errorf("Device, Memory, Pool and Data are needed: %w", syscall.EINVAL)
	case !c.Copy && c.Pool.GPU() != c.Data.GPU():
		return fmt.Errorf("a pool of gpu %d for data of gpu %d: %w", c.Pool.GPU(), c.Data.GPU(), syscall.EXDEV)
	case !c.Server.IsValid() || c.Server.Port() == 0:
		return fmt.Errorf("server %v: an address and a port are needed: %w", c.Server, syscall.EINVAL)
	case len(c.Export) > maxString || strings.ContainsRune(c.Export, 0):
		return fmt.Errorf("an export's name of %d bytes: %d at most, and none is 0: %w", len(c.Export), maxString,
			syscall.EINVAL)
	case c.Depth < 1 || c.Depth > maxDepth:
		return fmt.Errorf("a depth of %d: 1 to %d: %w", c.Depth, maxDepth, syscall.EINVAL)
	case c.Timeout < 0:
		return fmt.Errorf("a timeout of %v: %w", c.Timeout, syscall.EINVAL)
	}
	return nil
}

type link struct {
	devmem.Conn
	what string // names the connection in errors

	queue []uint32 // indexes of slots with requests to send; under Device.mu
	out   int      // requests sent, or being sent, and not answered; under Device.mu

	send, receive chan struct{} // wake the goroutines that send and receive; capacity 1
}

func wake(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// Device implements block.Device for an export of an NBD server.
type Device struct {
	c       Config
	info    block.Info
	flushes bool // the server has NBD_CMD_FLUSH; false if info.ReadOnly
	shared  bool // the server has NBD_FLAG_CAN_MULTI_CONN; false if info.ReadOnly

	rx, tx devmem.Binding // of Pool and Data; nil: not bound
	flow   devmem.FlowID  // 0: none
	reads  *link
	writes *link // nil: none
	links  []*link

	stream *devmem.Stream // receives on the connection reads
	sender *devmem.Sender // sends payload on the connection writes; nil: there is none

	heads    []byte   // headers of replies to reads
	landed   []uint32 // slots of answered reads that land passes to Do
	requests []byte

	free []uint32
	done []uint32 // swapped with events

	mu     sync.Mutex
	slots  []slot // one of them for a flush
	count  uint64
	sizes  []size   // lengths of the reads sent, or being sent, and not answered
	ready  []uint32 // slots of answered writes, whose memory may still be in use, and of an answered flush
	events []uint32
	busy   bool // Do runs
	err    error
	cancel context.CancelCauseFunc // ends the goroutines of Do; nil: Do does not run

	ended chan struct{} // wakes Do; capacity 1
	work  sync.WaitGroup

	read, written, host, looked, looks, messages atomic.Uint64

	once   sync.Once
	closed error
}

var _ block.Device = (*Device)(nil)

// Open connects to a server, and opens one of its exports. Among its errors are ENOENT (no such export),
// EOPNOTSUPP (for example, the server requires TLS, or supports only older negotiation), EPERM (the server's
// policy) and block.ErrProtocol.
func Open(ctx context.Context, c Config) (_ *Device, err error) {
	if c.Timeout == 0 {
		c.Timeout = limits.Silence.Here()
	}
	if err := c.check(); err != nil {
		return nil, fmt.Errorf("nbd: %w", err)
	}
	d := &Device{c: c, slots: make([]slot, c.Depth+1), ended: make(chan struct{}, 1),
		heads: make([]byte, c.Depth*replyLen), requests: make([]byte, min(c.Depth, maxBatch)*requestLen)}
	for i := range c.Depth {
		d.free = append(d.free, uint32(c.Depth-1-i))
	}
	if err := d.open(ctx); err != nil {
		d.err = err
		for _, l := range d.links {
			_ = l.Close() // without NBD_CMD_DISC: the handshake may not be over
		}
		return nil, errors.Join(fmt.Errorf("nbd: %w", err), d.Close())
	}
	return d, nil
}

func (d *Device) open(ctx context.Context) (err error) {
	pool := d.c.Pool
	if d.c.Copy {
		pool = nil
	} else if d.rx, err = d.c.Device.BindRX(pool, d.c.Queue); err != nil {
		return err
	}
	e, err := d.connect(ctx, &d.reads, "read")
	if err != nil {
		return err
	}
	d.info = e.device(d.c.Depth)
	d.info.ReadOnly = d.info.ReadOnly || d.c.ReadOnly
	d.info.Name = fmt.Sprintf("export %q", d.c.Export)
	for _, more := range []string{e.name, e.description} {
		if more != "" && more != d.c.Export {
			d.info.Name += ", " + more
		}
	}
	if !d.info.ReadOnly {
		w, err := d.connect(ctx, &d.writes, "write")
		if err != nil {
			return err
		}
		if w.size != e.size || w.flags != e.flags || w.minBlock != e.minBlock || w.maxPayload != e.maxPayload {
			return fmt.Errorf("%s: the export has %d bytes and flags %#x, and to the read connection %d and %#x: %w",
				d.writes.what, w.size, w.flags, e.size, e.flags, block.ErrProtocol)
		}
		d.flushes = w.flags&flagSendFlush != 0
		d.shared = w.flags&flagMultiConn != 0
		d.sender = devmem.NewSender(d.writes, d.c.Memory)
		if !d.c.Copy {
			if d.tx, err = d.c.Device.BindTX(d.c.Data); err != nil {
				return err
			}
		}
	}
	d.stream = devmem.NewStream(d.reads, d.c.Memory, pool)
	if d.c.Copy {
		return nil
	}
	d.flow, err = d.c.Device.AddFlow(devmem.Flow{Src: devmembase.Unmap(d.c.Server),
		Dst: devmembase.AddrPort(d.reads.LocalAddr()), Queue: d.c.Queue})
	return err
}

func (d *Device) connect(ctx context.Context, to **link, what string) (e export, err error) {
	what += " connection to " + d.c.Server.String()
	slow := fmt.Errorf("not done in %v: %w", d.c.Timeout, context.DeadlineExceeded)
	ctx, cancel := context.WithTimeoutCause(ctx, d.c.Timeout, slow)
	defer cancel()
	c, err := d.c.Device.Dial(ctx, netip.AddrPortFrom(d.c.Local, 0), d.c.Server)
	if err != nil {
		err = diagnosis.DialServer(err, d.c.Server)
		if ctx.Err() != nil {
			err = fmt.Errorf("%w: %w", err, context.Cause(ctx))
		}
		return e, fmt.Errorf("%s: %w", what, err)
	}
	*to = &link{Conn: c, what: what, send: make(chan struct{}, 1), receive: make(chan struct{}, 1)}
	d.links = append(d.links, *to)
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = c.SetDeadline(time.Unix(1, 0))
		close(stopped)
	})
	e, err = handshake(c, d.c.Export)
	if !stop() {
		<-stopped
		if err == nil {
			err = errors.New("handshake")
		}
		if d.writes != nil {
			err = fmt.Errorf("%w (a server that takes one client at a time can be opened read-only)", err)
		}
		err = fmt.Errorf("%w: %w", err, context.Cause(ctx))
	}
	if err != nil {
		return e, fmt.Errorf("%s: %w", what, err)
	}
	c.SetStallLimit(d.c.Timeout)
	return e, nil
}

// Info implements block.Device. BlockSize is the server's minimum; if the server announces none, it is 512
// (proto.md, Size constraints), or 1 if 512 does not divide the size.
func (d *Device) Info() block.Info { return d.info }

// Coherent reports whether the server guarantees, by NBD_FLAG_CAN_MULTI_CONN and NBD_CMD_FLUSH, that reads see
// the data of an earlier, successful Do. It is false if Info.ReadOnly is set.
func (d *Device) Coherent() bool { return d.shared && d.flushes }

// Stats implements block.Device. HostBytes counts only the connection for reads. With Config.Copy, Looked and
// Looks are 0.
func (d *Device) Stats() block.Stats {
	return block.Stats{Read: d.read.Load(), Written: d.written.Load(), HostBytes: d.host.Load(),
		Looked: d.looked.Load(), Looks: d.looks.Load(), Messages: d.messages.Load()}
}

// fail sets the Device's error if it has none, cancels the context of Do's goroutines, and resets the connections.
func (d *Device) fail(err error) {
	d.mu.Lock()
	if d.err == nil {
		d.err = fmt.Errorf("nbd: %w", err)
	}
	err, cancel := d.err, d.cancel
	d.mu.Unlock()
	if cancel != nil {
		cancel(err)
	}
	for _, l := range d.links {
		_ = l.SetLinger(0) // otherwise TCP could retransmit data from memory that the caller may reuse
		_ = l.Close()
	}
}

// leave sends NBD_CMD_DISC on each connection and closes it (proto.md, Terminating the transmission phase).
// No other goroutine may send.
func (d *Device) leave() error {
	var errs []error
	for _, l := range d.links {
		var b [requestLen]byte
		r := request{Type: cmdDisc}
		r.encode(&b)
		_ = l.SetWriteDeadline(time.Now().Add(d.c.Timeout))
		_, _ = l.Write(b[:]) // the server may have gone
		if err := l.Close(); !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Close implements block.Device. It closes the bindings and waits for their end; the caller still owns the
// buffers. Close is idempotent, and callbacks of Do may call it.
func (d *Device) Close() error {
	d.once.Do(func() {
		d.mu.Lock()
		idle := d.err == nil && !d.busy
		if d.err == nil {
			d.err = fmt.Errorf("nbd: %w", net.ErrClosed)
		}
		d.mu.Unlock()
		var errs []error
		if idle {
			errs = append(errs, d.leave())
		} else {
			d.fail(net.ErrClosed)
		}
		d.work.Wait()
		if d.flow != 0 {
			errs = append(errs, d.c.Device.DelFlow(d.flow))
		}
		for _, b := range []devmem.Binding{d.rx, d.tx} {
			if b != nil {
				errs = append(errs, b.Close())
				<-b.Done()
			}
		}
		d.closed = errors.Join(errs...)
	})
	return d.closed
}
