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

// Exporter exports device memory as dma-bufs. [UDMABuf] is one; another would call the driver of a GPU.
type Exporter interface {
	// Export returns [off, off+size) of GPU gpu as a separate dma-buf. The caller owns fd, and after it has
	// closed fd it calls release, unless that is nil. Errors: ENODEV (no such GPU), EINVAL (outside it).
	Export(gpu int, off, size uint64) (fd int, release func() error, err error)
}

// Options are the options of Open.
type Options struct {
	Interface string       // its name, in the calling thread's network namespace
	Buffers   Exporter     // nil: Register returns ENODEV
	Log       *slog.Logger // nil: nothing is logged
	// Alone states that no other process has flow rules on the interface. Open then deletes the rules that exist there.
	Alone bool
}

// Device is a devmem.Device: a network interface, and the kernel's stack.
type Device struct {
	name     string
	index    int
	exporter Exporter
	log      *slog.Logger
	dial     dialFunc
	ioctl    func(b []byte) error // calls SIOCETHTOOL for the interface
	refs     func(fd int) (int64, error)
	poll     *poller
	work     sync.WaitGroup // goroutines that watch closed bindings, or keep sockets of closed connections
	giveUp   chan struct{}  // closed when the goroutines that watch bindings must stop
	aborted  chan struct{}  // closed when lingering connections must be reset
	flush    func() error   // makes the interface drop packets that wait there (replaceQdisc)
	kick     func() (int, error)
	count    counters

	binds sync.Map // by id: *binding until done; written under mu

	mu              sync.Mutex // guards the next fields, up to closing
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
	ntuple bool     // the device has turned ntuple on
	rss    []uint32 // empty: the driver's default; nil: not changed
}

var _ devmem.Device = (*Device)(nil)

// Open opens a network interface. It changes nothing there, except that it deletes flow rules if Options.Alone is set.
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

// queues returns the number of receive queues, which is never 0 without an error. The caller holds mu.
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

// Queues returns the number of receive queues; 0 if it is unknown, as while the interface
// is down, or after Close.
func (d *Device) Queues() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	n, _ := d.queues()
	return n
}

// closeTime is how long Close waits until bindings' memory is no longer in use; longer on slow machines
// (limits.Limit.Here).
var closeTime = limits.Unbind

// flushTime is the interval at which the device makes the interface send waiting packets (kick.go) while memory
// of a closed binding is in use, and the time after which Close makes the interface drop them if it still waits. Both
// are longer on slow machines.
var flushTime = limits.Flush

// Close implements devmem.Device. It deletes the device's flow rules, and restores the settings of the interface that
// the device has changed. Among the errors is one for each binding whose memory is still in use after
// closeTime; then the binding's Done stays open. Later calls return nil.
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

// restore deletes the device's flow rules, and then undoes its changes of RSS, ntuple and header split. The rules come
// first because they need ntuple. The caller holds mu.
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

// restoreRings restores the HDS threshold and header split. It lets the driver decide about the split; if the kernel
// then does not report the split of was, it sets that.
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
