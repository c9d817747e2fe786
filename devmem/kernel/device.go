package kernel

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/devmembase"
	"vnic.dev/vnic/internal/limits"
)

// Exporter exports device memory as dma-bufs: the driver of a GPU, or [UDMABuf].
type Exporter interface {
	// Export returns [off, off+size) of GPU gpu as a separate dma-buf. The caller owns fd, and calls release,
	// which may be nil, after it has closed fd. Errors: ENODEV (no such GPU), EINVAL (outside it).
	Export(gpu int, off, size uint64) (fd int, release func() error, err error)
}

// Options of Open.
type Options struct {
	Interface string       // in the calling thread's network namespace
	Buffers   Exporter     // nil: Register returns ENODEV
	Log       *slog.Logger // nil: none
	// Alone means that no other process has flow rules on the interface: Open deletes existing ones.
	Alone bool
}

// Device is a devmem.Device: a network interface, and the kernel's stack.
type Device struct {
	name     string
	index    int
	exporter Exporter
	log      *slog.Logger
	dial     dialFunc
	ioctl    func(b []byte) error // SIOCETHTOOL
	refs     func(fd int) (int64, error)
	poll     *poller
	work     sync.WaitGroup // goroutines that watch bindings, or keep sockets
	giveUp   chan struct{}  // closed when watching bindings must stop
	aborted  chan struct{}  // closed when lingering connections must be reset
	flush    func() error   // makes the interface drop packets that wait there
	kick     func() (int, error)
	count    counters

	binds sync.Map // by id: *binding until done; written under mu

	mu              sync.Mutex // configuration
	netdev, ethtool *genl
	buffers         map[*buffer]struct{}
	flows           map[devmem.FlowID]devmem.Flow
	undo            undo
	closing         bool

	conns     devmembase.Set[*Conn]
	listeners devmembase.Set[*Listener]

	once sync.Once
}

// undo has the settings before the device's changes.
type undo struct {
	rings  *rings   // nil: not changed
	ntuple bool     // ntuple was off
	rss    []uint32 // empty: the driver's default; nil: not changed
}

var _ devmem.Device = (*Device)(nil)

// Open opens a network interface. Apart from Options.Alone it changes nothing there.
func Open(o Options) (*Device, error) {
	ifc, err := net.InterfaceByName(o.Interface)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", o.Interface, err)
	}
	d, err := newDevice(o, ifc.Index, dialKernel, func(b []byte) error { return ethtoolIoctl(o.Interface, b) })
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", o.Interface, err)
	}
	return d, nil
}

func newDevice(o Options, index int, dial dialFunc, ioctl func([]byte) error) (d *Device, err error) {
	d = &Device{
		name: o.Interface, index: index, exporter: o.Buffers, log: cmp.Or(o.Log, slog.New(slog.DiscardHandler)),
		dial: dial, ioctl: ioctl, refs: dmabufRefs, giveUp: make(chan struct{}), aborted: make(chan struct{}),
		flush:   func() error { return withRoutes(func(ask asker) error { return replaceQdisc(ask, index) }) },
		kick:    func() (int, error) { return kick(index) },
		buffers: map[*buffer]struct{}{}, flows: map[devmem.FlowID]devmem.Flow{},
	}
	if d.netdev, err = dial.open(netdevFamily); err != nil {
		return nil, err
	}
	if d.ethtool, err = dial.open(ethtoolFamily); err != nil {
		return nil, errors.Join(err, d.netdev.Close())
	}
	if d.poll, err = newPoller(); err != nil {
		return nil, errors.Join(err, d.netdev.Close(), d.ethtool.Close())
	}
	d.count.base = d.nicCounters()
	if o.Alone {
		if err := d.dropRules(); err != nil {
			return nil, errors.Join(err, d.Close())
		}
	}
	return d, nil
}

// use returns an error if Close was called. The caller holds mu.
func (d *Device) use() error {
	if d.closing {
		return fmt.Errorf("%s: %w", d.name, net.ErrClosed)
	}
	return nil
}

// queues returns the number of receive queues. The caller holds mu.
func (d *Device) queues() (int, error) {
	if err := d.use(); err != nil {
		return 0, err
	}
	qs, err := d.netdev.rxQueues(d.index)
	if err != nil {
		return 0, fmt.Errorf("list queues: %w", err)
	}
	if len(qs) == 0 {
		return 0, fmt.Errorf("no queue: is the interface up? %w", errDown)
	}
	return len(qs), nil
}

// Queues returns the number of receive queues; 0 if it is unknown, as while the interface is down.
func (d *Device) Queues() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	n, _ := d.queues()
	return n
}

// closeTime is how long Close waits for bindings' memory.
var closeTime = limits.Unbind

// flushTime is the interval at which the device makes the interface send waiting packets (kick.go) while memory
// of a closed binding is in use, and the time after which Close drops them.
var flushTime = limits.Flush

// Close implements devmem.Device. It restores the settings of the interface that the device has changed. It
// returns an error if the memory of a binding is still in use after closeTime; then the binding's Done stays
// open.
func (d *Device) Close() error {
	var err error
	d.once.Do(func() { err = d.close() })
	return err
}

func (d *Device) close() error {
	d.abort()
	d.mu.Lock()
	d.closing = true
	var errs []error
	for b := range d.bindings() {
		errs = append(errs, b.close())
	}
	d.mu.Unlock()

	idle := make(chan struct{})
	go func() {
		d.work.Wait()
		close(idle)
	}()
	late, stop := time.After(flushTime.Here()), time.After(closeTime.Here())
	for waiting := true; waiting; {
		select {
		case <-idle:
			waiting = false
		case <-late:
			if err := d.flush(); err != nil {
				d.log.Warn("memory is still in use, and packets that wait to be sent cannot be dropped", "interface", d.name,
					"err", err)
			}
		case <-stop:
			close(d.giveUp)
		}
	}

	d.mu.Lock()
	defer d.mu.Unlock()
	for b := range d.bindings() {
		errs = append(errs, fmt.Errorf("binding %d: memory still in use after %v", b.id, closeTime.Here()), b.mem.close())
	}
	errs = append(errs, d.restore())
	for b := range d.buffers {
		errs = append(errs, b.close())
	}
	d.poll.close()
	errs = append(errs, d.netdev.Close(), d.ethtool.Close())
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("close %s: %w", d.name, err)
	}
	return nil
}

func (d *Device) abort() {
	listeners, _ := d.listeners.Close()
	conns, _ := d.conns.Close()
	close(d.aborted)
	for _, l := range listeners {
		_ = l.Close()
	}
	for _, c := range conns {
		_ = c.SetLinger(0)
		_ = c.Close()
	}
}

// restore undoes the device's changes: first the ones that depend on others.
func (d *Device) restore() error {
	var errs []error
	for id := range d.flows {
		errs = append(errs, d.delFlow(id))
	}
	if d.undo.rss != nil {
		errs = append(errs, devmembase.Named("restore rss", d.setIndir(d.undo.rss)))
	}
	if d.undo.ntuple {
		errs = append(errs, devmembase.Named("turn ntuple off", d.ethtool.setFeature(d.index, ntupleFeature, false)))
	}
	if d.undo.rings != nil {
		errs = append(errs, devmembase.Named("restore tcp-data-split", d.restoreRings(*d.undo.rings)))
		d.runQueued()
	}
	d.undo = undo{}
	return errors.Join(errs...)
}

// restoreRings lets the driver decide about header split, unless the setting then differs from was.
func (d *Device) restoreRings(was rings) error {
	back := was
	back.split = splitUnknown
	if err := d.ethtool.setRings(d.index, back); err != nil {
		return err
	}
	now, err := d.ethtool.getRings(d.index)
	if err != nil || now.split == was.split {
		return err
	}
	return d.ethtool.setRings(d.index, was)
}
