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
	"vnic.dev/vnic/internal/diagnosis"
	"vnic.dev/vnic/internal/limits"
)

// DefaultTimeout is Config.Timeout where that is 0.
const DefaultTimeout = time.Duration(limits.Silence)

// maxDepth bounds what a Config costs.
const maxDepth = 1024

// Config says which export of which server, and where its data is to lie.
type Config struct {
	Device devmem.Device
	Memory devmem.Memory // of the Device's GPUs

	Server netip.AddrPort
	Export string     // its name, of up to 4096 bytes; "" is the server's default
	Local  netip.Addr // where connections are from; the zero Addr: the Device chooses

	// Queue is a receive queue that can be bound, which the Device takes for its reads. No RSS may lead there.
	Queue int
	Pool  devmem.Buffer // where what is read lands, and is taken from: of Data's GPU, bound by the Device
	Data  devmem.Buffer // where Mem of operations is; bound for transmit by the Device, where it can write

	Depth    int  // operations at a time, 1 to 1024
	ReadOnly bool // there is no connection for writes, and none is done (EROFS)

	// Timeout is for how long a connection on which something is under way may make no progress, and how long
	// connecting and a handshake may take in all; 0 means DefaultTimeout.
	Timeout time.Duration

	// Copy has all payload go through host memory, as a baseline: nothing is bound, no flow is steered, and Pool and
	// Queue are not used.
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

// link is one of the connections.
type link struct {
	devmem.Conn
	what string // for errors

	queue []uint32 // of slots whose requests are to be sent; under mu
	out   int      // requests that were sent, and are not answered; under mu

	send, receive chan struct{} // wake the goroutines that do so; of capacity 1
}

// wake has a goroutine look again that waits for ch, now or later.
func wake(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// Device is a block.Device: an export of a server.
type Device struct {
	c       Config
	info    block.Info
	flushes bool // the server has NBD_CMD_FLUSH
	shared  bool // and NBD_FLAG_CAN_MULTI_CONN

	rx, tx devmem.Binding // nil: none
	flow   devmem.FlowID  // 0: none
	reads  *link
	writes *link // nil: none

	stream *devmem.Stream // of reads: the receiving goroutine's
	sender *devmem.Sender // of writes: the sending goroutine's

	heads    []byte   // the receiving goroutine's, of reads: heads that were looked at
	landed   []uint32 // likewise: slots whose data was taken
	requests []byte   // the sending goroutine's, of reads

	free []uint32 // slots; Do's
	done []uint32 // Do's, in turns with events

	mu     sync.Mutex
	slots  []slot // Depth of them, and one for a flush
	count  uint64 // of operations that were begun
	sizes  []size // of reads that are under way
	ready  []uint32
	events []uint32
	busy   bool // Do runs
	err    error
	cancel context.CancelCauseFunc // ends what Do does; nil: it does not run

	ended chan struct{} // wakes Do; of capacity 1
	work  sync.WaitGroup

	read, written, host, looked, looks, messages atomic.Uint64

	once   sync.Once
	closed error // of once
}

var _ block.Device = (*Device)(nil)

// Open connects to a server, and opens one of its exports. Errors that can be asked for: ENOENT (no such export),
// EOPNOTSUPP (TLS is wanted, or the server is of an older protocol), EPERM (its policy), block.ErrProtocol (it breaks
// the protocol), EINVAL and EXDEV (the Config), and those of devmem.Device.
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
		for _, l := range d.links() {
			_ = l.Close() // which are not in the transmission phase; NBD_OPT_ABORT may be on its way
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
	local, err := netip.ParseAddrPort(d.reads.LocalAddr().String())
	if err != nil {
		return fmt.Errorf("%s: where it is from: %w", d.reads.what, err)
	}
	from := netip.AddrPortFrom(d.c.Server.Addr().Unmap(), d.c.Server.Port())
	d.flow, err = d.c.Device.AddFlow(devmem.Flow{Src: from, Dst: local, Queue: d.c.Queue})
	return err
}

// connect makes a connection, and does the handshake.
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

// Info implements block.Device. BlockSize is the server's minimum, or 512 where it gives none (proto.md, Size
// constraints); MaxTransfer is the server's, 32 MiB at most.
func (d *Device) Info() block.Info { return d.info }

// Coherent says whether what was written is read after Do has returned, by the server's word: it has
// NBD_FLAG_CAN_MULTI_CONN and NBD_CMD_FLUSH. It is false of an export that is only read.
func (d *Device) Coherent() bool { return d.shared && d.flushes }

// Stats implements block.Device. HostBytes has heads in it, as of a connection that is not steered. Looked has all
// bytes that were looked at, those behind a reply with an error too.
func (d *Device) Stats() block.Stats {
	return block.Stats{Read: d.read.Load(), Written: d.written.Load(), HostBytes: d.host.Load(),
		Looked: d.looked.Load(), Looks: d.looks.Load(), Messages: d.messages.Load()}
}

func (d *Device) links() (list []*link) {
	for _, l := range []*link{d.reads, d.writes} {
		if l != nil {
			list = append(list, l)
		}
	}
	return list
}

// fail ends the connections, for the reason that is the first.
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
	for _, l := range d.links() {
		_ = l.SetLinger(0) // or what was sent and not acknowledged goes out from memory that is not ours any more
		_ = l.Close()
	}
}

// leave ends the connections as the protocol has it (proto.md, Terminating the transmission phase): nothing is under
// way, and no goroutine of ours sends.
func (d *Device) leave() error {
	var errs []error
	for _, l := range d.links() {
		var b [requestLen]byte
		r := request{Type: cmdDisc}
		r.encode(&b)
		_ = l.SetWriteDeadline(time.Now().Add(d.c.Timeout))
		_, _ = l.Write(b[:]) // a server that is gone already is no error
		if err := l.Close(); !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Close implements block.Device: by NBD_CMD_DISC where nothing is under way, else at once; Do returns then. Buffers
// stay the caller's, whose bindings are closed and done when it returns. It is idempotent, and may be called by what
// Do calls.
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
