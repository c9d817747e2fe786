package nvmetcp

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"time"

	"vnic.dev/vnic/block"
	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/diagnosis"
	"vnic.dev/vnic/internal/limits"
)

// Defaults of a Config's Timeout and Depth. A Timeout of 0 becomes DefaultTimeout times the process's limits.Slow,
// which is 1 or, on slow machines, more.
const (
	DefaultTimeout = time.Duration(limits.Silence)
	DefaultDepth   = 128
)

const (
	maxDepth  = 1023
	maxNQN    = 223        // most bytes of an NQN (Base 7.9)
	allNSIDs  = 0xffffffff // means all namespaces
	uuidNQN   = "nqn.2014-08.org.nvmexpress:uuid:"
	discovery = "nqn.2014-08.org.nvmexpress.discovery"
)

// Config names the namespace to open and the memory for its data, and has settings of the connections.
type Config struct {
	Device devmem.Device
	Memory devmem.Memory // accesses the memory of Device's GPUs

	Target    netip.AddrPort
	NQN       string
	HostNQN   string // empty: Open makes a random one
	Namespace uint32 // NSID; 0 means 1

	Local netip.Addr    // local address; the zero Addr: Config.Device chooses it
	Queue int           // receive queue for Pool; RSS must not spread packets to it (devmem.Device.SetRSS)
	Pool  devmem.Buffer // receives what arrives on the I/O queue; Open binds it to Queue (not with Copy)
	Data  devmem.Buffer // Op.Mem is an offset in it; without Copy it is on Pool's GPU, and Open binds it for transmit

	// Depth is the most commands in the I/O queue, 1 to 1023; 0 means DefaultDepth. The controller may allow fewer
	// (Info.MaxDepth).
	Depth int

	// Timeout limits the time for which Do waits without a byte received or acknowledged, and the time of each
	// connect, exchange of ICReq and ICResp, command and wait of Open and Close (for CSTS.RDY the limit is CAP.TO,
	// at least 500 ms). 0 means DefaultTimeout, longer on slow machines.
	Timeout time.Duration

	// Copy moves payload through host memory, as a baseline for measurements; Queue and Pool are not used.
	Copy bool
}

// check sets the defaults of c's zero fields, and returns EINVAL or EXDEV if c is not valid.
func (c *Config) check() error {
	fail := func(format string, args ...any) error {
		return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), syscall.EINVAL)
	}
	if c.Namespace == 0 {
		c.Namespace = 1
	}
	if c.Depth == 0 {
		c.Depth = DefaultDepth
	}
	if c.Timeout == 0 {
		c.Timeout = limits.Silence.Here()
	}
	if c.HostNQN == "" {
		c.HostNQN = randomNQN()
	}
	switch {
	case c.Device == nil || c.Memory == nil || c.Data == nil || c.Pool == nil && !c.Copy:
		return fail("Device, Memory, Data and Pool are needed")
	case !c.Target.IsValid() || c.Target.Port() == 0:
		return fail("target %v: an address and a port are needed", c.Target)
	case c.NQN == "" || len(c.NQN) > maxNQN || len(c.HostNQN) > maxNQN:
		return fail("NQN %q, host NQN %q: 1 to %d bytes each", c.NQN, c.HostNQN, maxNQN)
	case strings.ContainsRune(c.NQN+c.HostNQN, 0):
		return fail("NQN %q, host NQN %q: no NUL", c.NQN, c.HostNQN)
	case c.NQN == discovery:
		return fail("NQN %q is the discovery subsystem's, which has no namespaces", c.NQN)
	case c.Namespace == allNSIDs:
		return fail("namespace %#x is all of them", c.Namespace)
	case c.Depth < 1 || c.Depth > maxDepth:
		return fail("depth %d: 1 to %d", c.Depth, maxDepth)
	case c.Timeout < 0:
		return fail("a timeout of %v", c.Timeout)
	case !c.Copy && c.Pool.GPU() != c.Data.GPU():
		return fmt.Errorf("pool of gpu %d for data of gpu %d: %w", c.Pool.GPU(), c.Data.GPU(), syscall.EXDEV)
	}
	return nil
}

// randomNQN returns a host NQN with a random UUID (Base 7.9; RFC 4122, 4.4).
func randomNQN() string {
	var u [16]byte
	_, _ = rand.Read(u[:])
	u[6], u[8] = u[6]&0x0f|0x40, u[8]&0x3f|0x80
	return fmt.Sprintf("%s%x-%x-%x-%x-%x", uuidNQN, u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}

// hostID returns the UUID of a host NQN; of an NQN without a valid UUID, the first 16 bytes of its SHA-256.
func hostID(nqn string) (id [16]byte) {
	if u, ok := strings.CutPrefix(nqn, uuidNQN); ok {
		if b, err := hex.DecodeString(strings.ReplaceAll(u, "-", "")); err == nil && len(b) == len(id) {
			return [16]byte(b)
		}
	}
	sum := sha256.Sum256([]byte(nqn))
	return [16]byte(sum[:])
}

// Device is an opened namespace of a subsystem. It implements block.Device.
type Device struct {
	c     Config
	ctrl  controller
	admin *link
	q     queue

	rx, tx devmem.Binding // nil with Copy
	flow   devmem.FlowID  // 0: none

	doing sync.Mutex // held by Do, and by Close once no Do runs

	mu     sync.Mutex
	err    error
	cancel context.CancelCauseFunc // cancels the context of the running Do, if one runs

	once   sync.Once
	closed error
}

var _ block.Device = (*Device)(nil)

// Open connects to c.Target, and opens a namespace. Among its errors are EINVAL and EXDEV (the Config); EACCES
// (host not allowed, or authentication), EBUSY, EINVAL (for example no such subsystem) and ENODEV (no such
// namespace) from the target; EMEDIUMTYPE (not an I/O controller), EOPNOTSUPP (metadata, protection information),
// block.ErrProtocol, os.ErrDeadlineExceeded and ETIMEDOUT.
func Open(ctx context.Context, c Config) (*Device, error) {
	if err := c.check(); err != nil {
		return nil, fmt.Errorf("nvme/tcp: %w", err)
	}
	d := &Device{c: c}
	if err := d.open(ctx); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		err = d.wrap(err)
		_ = d.fail(err)
		return nil, errors.Join(err, d.release())
	}
	return d, nil
}

func (d *Device) open(ctx context.Context) (err error) {
	if !d.c.Copy { // before dial: BindRX may restart the receive queue
		if d.rx, err = d.c.Device.BindRX(d.c.Pool, d.c.Queue); err != nil {
			return err
		}
		if d.tx, err = d.c.Device.BindTX(d.c.Data); err != nil {
			return err
		}
	}
	if d.admin, err = d.dial(ctx); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { abort(d.admin.c) })
	defer stop()
	if err := d.connect(ctx); err != nil {
		return err
	}
	d.depth()
	if err := d.ioQueue(ctx); err != nil {
		return err
	}
	local, ok := d.q.conn.LocalAddr().(*net.TCPAddr)
	if !ok {
		return fmt.Errorf("local address %v is none of TCP: %w", d.q.conn.LocalAddr(), syscall.EAFNOSUPPORT)
	}
	if !d.c.Copy {
		f := devmem.Flow{Src: d.c.Target, Dst: local.AddrPort(), Queue: d.c.Queue}
		if d.flow, err = d.c.Device.AddFlow(f); err != nil {
			return err
		}
	}
	d.q.init(d)
	return nil
}

// depth sets Info.MaxDepth to Config.Depth, or less if CAP.MQES (at least 1) or MAXCMD is less. A queue of n entries
// holds n-1 commands, and MQES is the number of entries less one.
func (d *Device) depth() {
	n := min(d.c.Depth, max(int(d.ctrl.capab&0xffff), 1))
	if d.ctrl.maxCmd > 0 {
		n = min(n, d.ctrl.maxCmd)
	}
	d.ctrl.info.MaxDepth = n
}

func (d *Device) dial(ctx context.Context) (*link, error) {
	ctx, cancel := context.WithTimeout(ctx, d.c.Timeout)
	defer cancel()
	c, err := d.c.Device.Dial(ctx, netip.AddrPortFrom(d.c.Local, 0), d.c.Target)
	if err != nil {
		return nil, diagnosis.DialServer(err, d.c.Target)
	}
	return &link{c: c, timeout: d.c.Timeout, align: wordLen}, nil
}

func (d *Device) wrap(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("nvme/tcp: %s at %v: %w", d.c.NQN, d.c.Target, err)
}

// abort resets a connection; after a mere Close TCP could still send data from Config.Data.
func abort(c devmem.Conn) {
	_ = c.SetLinger(0)
	_ = c.Close()
}

// fail makes the Device fail with err, unless it has failed already: it cancels Do's context, and resets the
// connections. It returns the first error with which the Device failed.
func (d *Device) fail(err error) error {
	d.mu.Lock()
	was, cancel := d.err, d.cancel
	if was == nil {
		d.err = err
	}
	d.mu.Unlock()
	if was != nil {
		return was
	}
	if cancel != nil {
		cancel(err)
	}
	if d.q.conn != nil {
		abort(d.q.conn)
	}
	if d.admin != nil {
		abort(d.admin.c)
	}
	return err
}

// failed returns why the Device cannot be used any more, or nil.
func (d *Device) failed() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.err
}

// Info describes the namespace. MaxTransfer is from MDTS, or 4 MiB if MDTS is 0; in whole blocks, at most 65536
// of them, and at most 2 GiB.
func (d *Device) Info() block.Info { return d.ctrl.info }

// Stats returns a snapshot; do not call it while Do runs. With Config.Copy, Looked and Looks are 0.
func (d *Device) Stats() block.Stats { return d.q.snapshot() }

// Close resets the connections if Do runs, which ends the operations in progress; otherwise it shuts the
// controller down, unless the Device has failed. Close waits for the end of Do, so next and done must not call Close.
// Close then deletes the flow rule, closes the bindings, and waits until their memory is no longer in use; ETIMEDOUT:
// a binding's memory was still in use after Config.Timeout. Later calls return the result of the first.
func (d *Device) Close() error {
	d.once.Do(func() {
		err := d.wrap(net.ErrClosed)
		if d.doing.TryLock() {
			if d.failed() == nil {
				_ = d.q.conn.Close()
				d.shutdown()
				_ = d.admin.c.Close()
			}
		} else {
			_ = d.fail(err)
			d.doing.Lock()
		}
		defer d.doing.Unlock()
		_ = d.fail(err)
		d.closed = d.wrap(d.release())
	})
	return d.closed
}

// release deletes the flow rule and closes the bindings, as far as Open made them, and waits for the bindings' end
// (settled).
func (d *Device) release() error {
	var errs []error
	if d.flow != 0 {
		errs = append(errs, d.c.Device.DelFlow(d.flow))
	}
	for _, b := range []devmem.Binding{d.rx, d.tx} {
		if b != nil {
			errs = append(errs, b.Close())
		}
	}
	return errors.Join(append(errs, d.settled(d.rx), d.settled(d.tx))...)
}

// settled waits until the memory of closed binding b is no longer in use, or returns ETIMEDOUT after Config.Timeout.
func (d *Device) settled(b devmem.Binding) error {
	if b == nil {
		return nil
	}
	t := time.NewTimer(d.c.Timeout)
	defer t.Stop()
	select {
	case <-b.Done():
		return nil
	case <-t.C:
		return fmt.Errorf("binding %d is closed, but its memory is in use: %w", b.ID(), syscall.ETIMEDOUT)
	}
}
