package plain

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/devmembase"
	"vnic.dev/vnic/internal/diagnosis"
)

const (
	maxQueues = 256
	maxRules  = 1024
	minPages  = 16 // least pages of a receive binding for each of its queues
)

// Options are options of New.
type Options struct {
	GPUs   []*GPU // the caller closes them, after the Device
	Queues int    // number of receive queues, 2 to 256; 0 means 16
}

// Device is a devmem.Device over the operating system's TCP.
type Device struct {
	gpus []*GPU

	mu       sync.Mutex
	closed   bool
	queues   []*binding // the binding of each receive queue; nil: its data goes to host memory
	rules    map[devmem.FlowID]devmem.Flow
	lastRule devmem.FlowID
	bindings map[uint32]*binding
	lastID   uint32
	ends     devmembase.Set[io.Closer] // open connections and listeners
	work     sync.WaitGroup

	rxDevice, rxLinear, txDevice, txLinear, drops atomic.Uint64
}

var _ devmem.Device = (*Device)(nil)

// New makes a Device. EINVAL: Queues is out of range.
func New(o Options) (*Device, error) {
	if o.Queues == 0 {
		o.Queues = 16
	}
	if o.Queues < 2 || o.Queues > maxQueues {
		return nil, fmt.Errorf("%d receive queues: 2 to %d: %w", o.Queues, maxQueues, syscall.EINVAL)
	}
	return &Device{gpus: slices.Clone(o.GPUs), queues: make([]*binding, o.Queues),
		rules: make(map[devmem.FlowID]devmem.Flow), bindings: make(map[uint32]*binding)}, nil
}

var errClosed = fmt.Errorf("device: %w", net.ErrClosed)

// use returns an error if the device is closed. The caller holds d.mu.
func (d *Device) use() error {
	if d.closed {
		return errClosed
	}
	return nil
}

// AddFlow implements devmem.Device.
func (d *Device) AddFlow(f devmem.Flow) (devmem.FlowID, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.use(); err != nil {
		return 0, err
	}
	f.Src, f.Dst = devmembase.Unmap(f.Src), devmembase.Unmap(f.Dst)
	err := devmembase.CheckFlow(f, len(d.queues), slices.Collect(maps.Values(d.rules))...)
	if err == nil && len(d.rules) >= maxRules {
		err = fmt.Errorf("%d rules are all there can be: %w", maxRules, syscall.ENOSPC)
	}
	if err != nil {
		return 0, fmt.Errorf("flow %v to %v: %w", f.Src, f.Dst, err)
	}
	d.lastRule++
	d.rules[d.lastRule] = f
	return d.lastRule, nil
}

// DelFlow implements devmem.Device.
func (d *Device) DelFlow(id devmem.FlowID) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, ok := d.rules[id]; !ok {
		return diagnosis.NoFlow(id, slices.Collect(maps.Keys(d.rules)))
	}
	delete(d.rules, id)
	return nil
}

// SetRSS implements devmem.Device. It checks n, and has no other effect.
func (d *Device) SetRSS(n int) error {
	if n < 1 || n > len(d.queues) {
		return fmt.Errorf("rss over %d queues: 1 to %d: %w", n, len(d.queues), syscall.EINVAL)
	}
	return nil
}

// steered returns the binding of the queue to which the rules steer packets from src to dst; nil if the queue has
// none.
func (d *Device) steered(src, dst netip.AddrPort) *binding {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.queues[d.queueOf(src, dst)] // queue 0 never has a binding: BindRX returns ERANGE
}

// queueOf returns the queue of the matching rule that compares most addresses and ports, of several the oldest; 0 if
// no rule matches. The caller holds d.mu.
func (d *Device) queueOf(src, dst netip.AddrPort) int {
	var best devmem.FlowID
	most, queue := -1, 0
	for id, r := range d.rules {
		n, ok := diagnosis.Matches(r, src, dst)
		if ok && (n > most || n == most && id < best) {
			best, most, queue = id, n, r.Queue
		}
	}
	return queue
}

// Listen implements devmem.Device.
func (d *Device) Listen(local netip.AddrPort) (devmem.Listener, error) {
	addr := net.TCPAddrFromAddrPort(local)
	network := "tcp4"
	if local.Addr().Is6() && !local.Addr().Is4In6() {
		network = "tcp6"
	}
	l, err := net.ListenTCP(network, addr)
	if err != nil {
		return nil, err
	}
	x := &listener{TCPListener: l, d: d}
	if !d.ends.Add(x, nil) {
		return nil, errors.Join(errClosed, l.Close())
	}
	return x, nil
}

// Dial implements devmem.Device.
func (d *Device) Dial(ctx context.Context, local, remote netip.AddrPort) (devmem.Conn, error) {
	dialer := net.Dialer{}
	if local.Addr().IsValid() || local.Port() != 0 {
		dialer.LocalAddr = net.TCPAddrFromAddrPort(local)
	}
	c, err := dialer.DialContext(ctx, "tcp", remote.String())
	if err != nil {
		return nil, diagnosis.Dial(err, remote)
	}
	return d.open(c.(*net.TCPConn))
}

type listener struct {
	*net.TCPListener
	d *Device
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) { return l.AcceptConn() }

// AcceptConn implements devmem.Listener.
func (l *listener) AcceptConn() (devmem.Conn, error) {
	c, err := l.AcceptTCP()
	if err != nil {
		return nil, err
	}
	return l.d.open(c)
}

// Close implements net.Listener.
func (l *listener) Close() error {
	l.d.ends.Remove(l)
	return l.TCPListener.Close()
}

// Stats implements devmem.Device. It sets the counters of bytes and NICDrops, and no other counter. RecvDevmem with
// Peek counts no bytes.
func (d *Device) Stats() devmem.Stats {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := devmem.Stats{RxDevmemBytes: d.rxDevice.Load(), RxLinearBytes: d.rxLinear.Load(),
		TxDevmemBytes: d.txDevice.Load(), TxLinearBytes: d.txLinear.Load(), NICDrops: d.drops.Load()}
	for i, b := range d.queues {
		q := devmem.QueueStats{Queue: i}
		if b != nil {
			q.Binding = b.id
		}
		s.Queues = append(s.Queues, q)
	}
	s.Bindings = diagnosis.Stats(d.allBindings())
	return s
}

// Close implements devmem.Device.
func (d *Device) Close() error {
	d.mu.Lock()
	d.closed = true
	bindings := slices.Collect(maps.Values(d.bindings))
	clear(d.rules)
	d.mu.Unlock()
	ends, _ := d.ends.Close()
	var errs []error
	for _, x := range ends {
		if c, ok := x.(*conn); ok {
			_ = c.SetLinger(0)
		}
		if err := x.Close(); !errors.Is(err, net.ErrClosed) { // the user may have closed x meanwhile
			errs = append(errs, err)
		}
	}
	for _, b := range bindings {
		errs = append(errs, b.Close())
	}
	d.work.Wait()
	return errors.Join(errs...)
}
