package gve

import (
	"cmp"
	"fmt"
	"log/slog"
	"math/bits"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/lab/shape"
	"vnic.dev/vnic/internal/nic"
	"vnic.dev/vnic/internal/scm"
	"vnic.dev/vnic/internal/wire"
	"vnic.dev/vnic/splitter"
	"vnic.dev/vnic/vfiouser"
	"vnic.dev/vnic/vfiouser/pci"
)

// Options configure a device.
type Options struct {
	Port   nic.Config // New sets QueuePairs, and the fields from HeaderLimit to Hash
	Queues int        // queue pairs with which the driver starts, at most 16; 0: 4
	// MaxQueues is the most queue pairs that the driver may use, Queues to 16; 0: twice Queues, at most 16.
	MaxQueues int
	// RxRing and TxRing are the lengths of rings with which the driver starts, MaxRxRing and MaxTxRing the longest:
	// powers of two from 64 to 4096; 0: a default.
	RxRing, TxRing, MaxRxRing, MaxTxRing int
	LinkSpeed                            uint32 // in Mbit/s; 0: 100,000
	// Express makes the device a PCI Express endpoint with this link; zero: it is a conventional PCI device.
	Express pci.Link
	// Patience is how long a transmitted frame waits for a busy receiver; 0: limits.Patience.Here().
	Patience time.Duration
	// Timestamps makes the device offer timestamps of received frames.
	Timestamps bool
}

const (
	defaultQueues = 4
	maxQueues     = 16
)

// PCI identity, layout and vectors (docs/specs/gve.md, 1).
const (
	vendorGoogle    = 0x1ae0
	deviceGVNIC     = 0x0042
	subsystemGVNIC  = 0x0058
	classEthernet   = 0x020000
	revision        = 1
	registersBAR    = 0
	msixBAR         = 1
	doorbellsBAR    = 2
	registersLen    = 4096
	msixLen         = 4096
	pendingBits     = 2048 // their offset in msixBAR
	doorbellsLen    = 64 << 10
	noManagement    = -1
	vectorsPerQueue = 2 // for a queue pair; the device has one more, for management
)

// Device is one NIC, a vfiouser.Device. One goroutine, the control goroutine, serves one frontend at a time.
type Device struct {
	log     *slog.Logger
	conf    Options
	space   *dma.Space
	port    *nic.Port
	rx      []*rxQueue
	tx      []*txQueue
	vectors vectors
	late    *moderator
	common  *shared
	monitor *nic.Monitor
	stats   statsReport

	limits     atomic.Pointer[wire.Limits]
	status     atomic.Uint32
	management atomic.Int32 // index of the management vector; -1: none
	limited    struct{ version, driver, reset, refusal, stop nic.LogLimit }
	failures   atomic.Uint64

	// Used by the control goroutine.
	config *pci.Config
	mem    *memory
	regs   registers
	aq     adminQueue
	res    resources
	rxUsed int // number of receive queues last given to Port.SetDefaultRSS; 0: the driver has none
	flows  flowTable
	used   bool // a driver has started the admin queue since the last reset
}

var _ vfiouser.Device = (*Device)(nil)

// New makes a device for the guest whose memory is in space.
func New(o Options, space *dma.Space) (*Device, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	d := &Device{log: o.Port.Log.With("port", o.Port.Name), conf: o, space: space, mem: newMemory(space)}
	d.stats = statsReport{dev: d, mem: newMemory(space)}
	d.status.Store(statusLink | statusResetDone)
	d.management.Store(noManagement)
	d.vectors.init(vectorsPerQueue*o.MaxQueues+1, shape.Now)
	d.res = resources{rx: make([]queueState, o.MaxQueues), tx: make([]queueState, o.MaxQueues)}
	d.setLimits()
	var err error
	if d.config, err = pci.New(d.identity()); err != nil {
		return nil, fmt.Errorf("gve %s: %w", o.Port.Name, err)
	}
	common := &shared{space: space, notify: &d.vectors, patience: o.Patience, failed: d.failed}
	d.common = common
	if o.Timestamps {
		common.clock = nicTime
	}
	queues := make([]nic.RxQueue, o.MaxQueues)
	for i := range queues {
		q := newRxQueue(common, i)
		d.rx = append(d.rx, q)
		queues[i] = sabotaged(q, o.Port.Sabotage)
	}
	if d.port, err = nic.NewPort(o.Port, space, queues, &d.limits); err != nil {
		return nil, err
	}
	common.device = d.port.NoteDeviceQueue
	d.vectors.losesFor(d.port)
	for i := range o.MaxQueues {
		q, err := newTxQueue(common, i, d.port)
		if err != nil {
			d.close()
			return nil, err
		}
		d.tx = append(d.tx, q)
	}
	if d.late, err = d.vectors.moderate(); err != nil {
		d.close()
		return nil, err
	}
	if d.monitor, err = nic.NewMonitor((*monitored)(d), &d.vectors.EventFDs, d.log); err != nil {
		d.late.close()
		d.close()
		return nil, err
	}
	return d, nil
}

func (o *Options) complete() error {
	if o.Port.Log == nil {
		o.Port.Log = slog.New(slog.DiscardHandler)
	}
	o.Queues = cmp.Or(o.Queues, defaultQueues)
	o.MaxRxRing = cmp.Or(o.MaxRxRing, maxRing)
	o.MaxTxRing = cmp.Or(o.MaxTxRing, maxRing)
	o.RxRing = cmp.Or(o.RxRing, min(1024, o.MaxRxRing))
	o.TxRing = cmp.Or(o.TxRing, min(512, o.MaxTxRing))
	o.LinkSpeed = cmp.Or(o.LinkSpeed, linkSpeed)
	if o.Queues < 1 || o.Queues > maxQueues {
		return fmt.Errorf("gve %s: %d queue pairs, not 1 to %d", o.Port.Name, o.Queues, maxQueues)
	}
	o.MaxQueues = cmp.Or(o.MaxQueues, min(2*o.Queues, maxQueues))
	if o.MaxQueues < o.Queues || o.MaxQueues > maxQueues {
		return fmt.Errorf("gve %s: at most %d queue pairs, not %d to %d", o.Port.Name, o.MaxQueues, o.Queues, maxQueues)
	}
	for _, n := range []int{o.RxRing, o.TxRing, o.MaxRxRing, o.MaxTxRing} {
		if n < minRing || n > maxRing || bits.OnesCount(uint(n)) != 1 {
			return fmt.Errorf("gve %s: ring of %d, not a power of two from %d to %d", o.Port.Name, n, minRing, maxRing)
		}
	}
	if o.RxRing > o.MaxRxRing || o.TxRing > o.MaxTxRing {
		return fmt.Errorf("gve %s: rings of %d and %d are longer than the longest", o.Port.Name, o.RxRing, o.TxRing)
	}
	o.Port.QueuePairs = o.MaxQueues
	o.Port.HeaderLimit = headerLimit
	o.Port.MaxRSS = rssTableLen
	o.Port.UnsplitQueue = -1
	o.Port.QueueSplits = true
	o.Port.Hash = true
	return nil
}

func (d *Device) identity() pci.Options {
	return pci.Options{Vendor: vendorGoogle, Device: deviceGVNIC, SubVendor: vendorGoogle, SubDevice: subsystemGVNIC,
		Class: classEthernet, Revision: revision, Express: d.conf.Express,
		BARs: [6]pci.BAR{registersBAR: {Size: registersLen}, msixBAR: {Size: msixLen}, doorbellsBAR: {Size: doorbellsLen}},
		MSIX: pci.MSIX{Vectors: len(d.vectors.v), BAR: msixBAR, PBAOff: pendingBits}}
}

// Port returns the device's port.
func (d *Device) Port() *nic.Port { return d.port }

// Space returns the guest's address space.
func (d *Device) Space() *dma.Space { return d.space }

// Failures returns how many times a queue has stopped on an error since New.
func (d *Device) Failures() uint64 { return d.failures.Load() }

// Close ends the queues, detaches the device's port from its switch, and frees the device, which must not be
// served any more.
func (d *Device) Close() {
	d.release()
	d.close()
	d.late.close() // before the monitor, which frees the moderator from a write that blocks
	d.monitor.Close()
	d.vectors.close()
	d.vectors.Free()
}

// close closes the port and frees the transmit queues, which must be stopped.
func (d *Device) close() {
	d.port.Close()
	for _, q := range d.tx {
		q.close()
	}
}

// setLimits updates limits: the port accepts GSO packets while there are receive queues, and the driver has created
// all of them with RSC.
func (d *Device) setLimits() {
	l := wire.Limits{Csum: true, MaxFrame: uint32(d.conf.Port.MTU) + splitter.EthLen}
	buf, rsc := packetBuffer, false
	for _, q := range d.res.rx {
		if q.live {
			buf, rsc = min(buf, q.buf), q.rsc
			if !rsc {
				break
			}
		}
	}
	if rsc {
		l.GSO = wire.GSO(splitter.GSOTCPv4, splitter.GSOTCPv6)
		l.MaxBytes = maxRSC(buf)
	}
	d.limits.Store(&l)
}

// failed asks the driver for a reset after a queue has stopped on an error: the driver would not notice a silent
// receive queue.
func (d *Device) failed(tx bool, id int, err error) {
	d.failures.Add(1)
	dir := "rx"
	if tx {
		dir = "tx"
	}
	d.limited.stop.Log(d.log, slog.LevelError, "queue stopped until the driver resets the NIC", "queue",
		fmt.Sprint(dir, id), "err", err)
	d.AskReset()
}

// reset is device reset: it ends DMA for the driver, and clears what the driver has set up. The PCI
// configuration space and the eventfds stay.
func (d *Device) reset() {
	d.release()
	d.port.Reset()
	d.regs, d.aq, d.rxUsed = registers{}, adminQueue{}, 0
	d.flows.clear()
	d.used = false
	d.status.And(^uint32(statusReset))
	d.status.Or(statusResetDone)
}

// Info implements vfiouser.Device.
func (d *Device) Info() vfiouser.Info {
	i := vfiouser.Info{Reset: true, Regions: make([]vfiouser.Region, vfiouser.NumRegions),
		IRQs: make([]vfiouser.IRQ, vfiouser.NumIRQs)}
	for region, size := range map[int]uint64{registersBAR: registersLen, msixBAR: msixLen, doorbellsBAR: doorbellsLen,
		vfiouser.RegionConfig: d.config.Size()} {
		i.Regions[region] = vfiouser.Region{Size: size, Read: true, Write: true}
	}
	i.IRQs[vfiouser.IRQMSIX].Count = len(d.vectors.v)
	i.IRQs[vfiouser.IRQErr].Count = 1 // for PCI errors, which never happen; without it QEMU warns
	return i
}

// ReadRegion implements vfiouser.Device.
func (d *Device) ReadRegion(region int, off uint64, b []byte) error {
	switch region {
	case registersBAR:
		d.readRegs(off, b)
	case msixBAR, doorbellsBAR:
		clear(b) // the frontend keeps the vector table, and doorbells are write-only
	case vfiouser.RegionConfig:
		return d.config.Read(off, b)
	default:
		return unix.EINVAL
	}
	return nil
}

// WriteRegion implements vfiouser.Device.
func (d *Device) WriteRegion(region int, off uint64, b []byte) error {
	switch region {
	case registersBAR:
		d.writeRegs(off, b)
	case msixBAR:
	case doorbellsBAR:
		d.writeDoorbells(off, b)
	case vfiouser.RegionConfig:
		return d.config.Write(off, b)
	default:
		return unix.EINVAL
	}
	return nil
}

// SetIRQ implements vfiouser.Device.
func (d *Device) SetIRQ(index, vector int, fd int) error {
	if index == vfiouser.IRQMSIX && d.vectors.get(vector) != nil {
		d.vectors.setFD(vector, fd)
		return nil
	}
	scm.Close(fd)
	if index == vfiouser.IRQErr && vector == 0 {
		return nil
	}
	return unix.EINVAL
}

// DisableIRQs implements vfiouser.Device.
func (d *Device) DisableIRQs(index int) error {
	if index == vfiouser.IRQMSIX {
		d.vectors.close()
	}
	return nil
}

// Reset implements vfiouser.Device.
func (d *Device) Reset() error {
	d.reset()
	d.config.Reset()
	return nil
}

// Unmapping implements vfiouser.Device. It stops queues whose rings overlap the range.
func (d *Device) Unmapping(iova, size uint64) {
	for i := range d.rx {
		if d.res.tx[i].live {
			d.tx[i].unmapping(iova, size)
		}
		if d.res.rx[i].live {
			d.rx[i].unmapping(iova, size)
		}
	}
}

// MemoryChanged implements vfiouser.Device. It has nothing to do: queues translate the addresses of buffers for each
// frame, and again for held frames after a change; rings are pinned (Unmapping stops their queues).
func (d *Device) MemoryChanged() {}

// Disconnected implements vfiouser.Device.
func (d *Device) Disconnected() {
	d.release()
	d.vectors.close()
	d.vectors.Release()
	d.regs, d.aq = registers{}, adminQueue{}
	d.config.Reset()
	d.status.And(^uint32(statusReset))
	d.status.Or(statusResetDone)
	d.port.Restarted()
}
