package virtio

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/nic"
	"vnic.dev/vnic/internal/wire"
	"vnic.dev/vnic/vhostuser"
	"vnic.dev/vnic/virtq"
)

// Why a queue stops.
var (
	errShortBuffer = fmt.Errorf("%w: receive buffer shorter than virtio_net_hdr", virtq.ErrBadChain)
	errReadable    = fmt.Errorf("%w: device-readable buffer on a receive queue", virtq.ErrBadChain)
	errNotSplit    = fmt.Errorf("%w: not a header buffer of virtio_net_hdr and %d bytes, and payload buffers, as header "+
		"split wants", virtq.ErrBadChain, HeaderLimit)
)

// HeaderLimit is the longest header that is split; a header buffer has virtio_net_hdr before it.
const HeaderLimit = 256

// Config says what a device is.
type Config struct {
	Files *dma.Files // of the process, with the GPUs' in it
	Port  nic.Config // Name, MAC, MTU, QueuePairs, GPUs, Log; the rest is this package's to set
	// SetMemTable makes the device refuse CONFIGURE_MEM_SLOTS, so that the frontend sends whole tables (tests).
	SetMemTable bool
	// Patience is how long a frame waits for a receiver without buffers before it is dropped; 0: limits.Patience.
	Patience time.Duration
}

// Device is one virtio-net NIC. It serves one frontend at a time.
type Device struct {
	log      *slog.Logger
	space    *dma.Space
	port     *nic.Port
	features atomic.Uint64 // negotiated
	limits   atomic.Pointer[wire.Limits]
	conf     Config
	monitor  *nic.Monitor
	rx       []*rxQueue
	tx       []*txQueue
	backend  *vhostuser.Backend
	serving  chan struct{} // holds one while a frontend is served
	eventFDs nic.EventFDs  // calls and errors
	rssMu    sync.Mutex    // of setDefaultRSS

	// Of the control goroutine.
	mtu    uint16
	status uint8
	pair0  pair0

	mu        sync.Mutex
	stopped   map[int]string // under mu: why queues stopped, for Errors
	broken    uint64         // under mu: how often one did
	rssDue    bool           // under mu: a queue has got its first buffers, and the default RSS is to be set again
	failures  map[int]error  // under mu: vrings that have stopped, and why, to be reported
	unreached map[int]error  // under mu: the same of vrings that have lost frames whose memory they could not reach

	// The monitor's, by vring: a guest can break a queue, and set it up again, as often as it likes.
	stops, losses []nic.LogLimit
}

// pair0 is what is known of queue pair 0 since a connection, a reset or a pause began: how its rings start tells
// whether the driver is new.
type pair0 struct {
	rx, tx  bool // started once
	goes    bool // one of them goes on where it was before
	decided bool
	paused  bool // it had a driver before, which stays if both rings start where they were
	moved   bool // one of them does not
}

var _ vhostuser.Device = (*Device)(nil)

// New makes a device. It is on no wire until Port().Attach, and moves nothing until a frontend is served.
func New(c Config) (*Device, error) {
	if c.Port.Log == nil {
		c.Port.Log = slog.New(slog.DiscardHandler)
	}
	d := &Device{log: c.Port.Log.With("port", c.Port.Name), conf: c, space: dma.NewSpace(c.Port.Name, c.Files),
		mtu: c.Port.MTU, stopped: map[int]string{}, serving: make(chan struct{}, 1)}
	d.backend = vhostuser.NewBackend(d, d.space, d.log)
	d.setLimits()
	pairs := max(c.Port.QueuePairs, 1)
	queues := make([]nic.RxQueue, pairs)
	d.stops, d.losses = make([]nic.LogLimit, 2*pairs), make([]nic.LogLimit, 2*pairs)
	for i := range pairs {
		q := newRxQueue(d, 2*i)
		d.rx = append(d.rx, q)
		queues[i] = sabotaged(q, c.Port.Sabotage)
	}
	c.Port.QueuePairs = pairs
	c.Port.HeaderLimit = HeaderLimit
	c.Port.UnsplitQueue = 0
	var err error
	if d.port, err = nic.NewPort(c.Port, d.space, queues, &d.limits); err != nil {
		return nil, err
	}
	if d.monitor, err = nic.NewMonitor((*monitored)(d), &d.eventFDs, d.log); err != nil {
		d.port.Close()
		return nil, err
	}
	for i := range pairs {
		q, err := newTxQueue(d, 2*i+1)
		if err != nil {
			d.Close()
			return nil, err
		}
		d.tx = append(d.tx, q)
	}
	return d, nil
}

// Port is the device's port.
func (d *Device) Port() *nic.Port { return d.port }

// Space is the guest's address space, as far as the frontend has shared it.
func (d *Device) Space() *dma.Space { return d.space }

// Serve speaks vhost-user on conn, which it closes, until the frontend hangs up or ctx ends. A
// second call waits for the first to return, or for its ctx.
func (d *Device) Serve(ctx context.Context, conn *net.UnixConn) error {
	select {
	case d.serving <- struct{}{}:
	case <-ctx.Done():
		_ = conn.Close()
		return context.Cause(ctx)
	}
	defer func() { <-d.serving }()
	return d.backend.Serve(ctx, conn)
}

// Unaccepted is vhostuser.Backend.Unaccepted.
func (d *Device) Unaccepted() string { return d.backend.Unaccepted() }

// Close takes the device off the wire and frees it. Serve has returned.
func (d *Device) Close() {
	for _, q := range d.tx {
		q.shut()
	}
	for _, q := range d.rx {
		q.shut()
	}
	d.port.Close() // from here on no frame comes in
	d.monitor.Close()
	d.eventFDs.Free()
	for _, q := range d.tx {
		q.sender.Close()
	}
	_ = d.space.Close()
}

func (d *Device) setLimits() {
	l := limits(d.features.Load(), d.mtu)
	d.limits.Store(&l)
}

// Features implements vhostuser.Device.
func (d *Device) Features() uint64 {
	f := uint64(offered)
	if len(d.rx) < 2 {
		f &^= fMQ
	}
	return f
}

// ProtocolFeatures implements vhostuser.Device.
func (d *Device) ProtocolFeatures() uint64 {
	f := uint64(vhostuser.ProtocolMQ | vhostuser.ProtocolReplyAck | vhostuser.ProtocolMTU | vhostuser.ProtocolStatus |
		vhostuser.ProtocolResetDevice | vhostuser.ProtocolMemSlots)
	if d.conf.SetMemTable {
		f &^= uint64(vhostuser.ProtocolMemSlots)
	}
	return f
}

// FeatureNames implements vhostuser.FeatureNamer.
func (d *Device) FeatureNames() *[64]string { return &featureNames }

// SetFeatures implements vhostuser.Device.
func (d *Device) SetFeatures(f uint64) error {
	if extra := f &^ (d.Features() | 1<<30); extra != 0 {
		return fmt.Errorf("SET_FEATURES: %v was not offered", vhostuser.Features{Bits: extra, Device: &featureNames})
	}
	d.features.Store(f)
	d.setLimits()
	return nil
}

// MaxQueues implements vhostuser.Device.
func (d *Device) MaxQueues() int { return 2 * len(d.rx) }

// QueueNum implements vhostuser.QueueCounter: QEMU and DPDK want the number of queue pairs.
func (d *Device) QueueNum() uint64 { return uint64(len(d.rx)) }

// MTU implements vhostuser.Device.
func (d *Device) MTU(mtu uint16) error {
	if mtu < 68 {
		return fmt.Errorf("NET_SET_MTU: %d is less than 68", mtu)
	}
	d.mtu = mtu
	d.port.SetMTU(mtu)
	d.setLimits()
	return nil
}

// Status implements vhostuser.Device.
func (d *Device) Status() uint8 { return d.status }

// SetStatus implements vhostuser.Device. At 0 the guest is paused: all that commands set up stays, for the driver that
// goes on, and meanwhile the NIC touches nothing of the guest's by RDMA.
func (d *Device) SetStatus(s uint8) error {
	if d.status = s; s == 0 {
		d.port.SuspendRDMA(true)
		d.pair0 = pair0{paused: true}
	}
	return nil
}

// GetConfig implements vhostuser.Device: QEMU answers for the configuration space itself.
func (d *Device) GetConfig(uint32, []byte) error { return errors.ErrUnsupported }

// SetConfig implements vhostuser.Device.
func (d *Device) SetConfig(uint32, []byte) error { return errors.ErrUnsupported }

// Reset implements vhostuser.Device.
func (d *Device) Reset() error {
	for i := range d.MaxQueues() {
		_, _ = d.StopQueue(i)
	}
	d.status = 0
	d.port.Reset()
	d.pair0 = pair0{}
	return nil
}

// MemoryChanged implements vhostuser.Device. Queues whose rings are concerned have been stopped before and are started
// again after; buffers are looked up for each frame.
func (d *Device) MemoryChanged() error { return nil }

// Disconnected implements vhostuser.Device. The port's state stays: the frontend may come back, with the same guest.
func (d *Device) Disconnected() {
	for i := range d.MaxQueues() {
		_, _ = d.StopQueue(i)
		_ = d.EnableQueue(i, false)
	}
	d.port.SuspendRDMA(true)
	d.port.Restarted()   // what it has beyond, it gets again
	d.eventFDs.Release() // the next frontend
	d.status = 0
	d.pair0 = pair0{}
}

// noteStart looks at how the rings of queue pair 0 begin. If none goes on from before, the driver is new: another guest
// may have taken the place of the one that set this port up. A ring goes on from 0, too, if the guest was paused there.
func (d *Device) noteStart(v *vhostuser.Vring, resumed bool) {
	d.port.SuspendRDMA(false)
	p := &d.pair0
	p.goes = p.goes || resumed || v.Running
	switch v.Index {
	case 0:
		p.rx = true
	case 1:
		p.tx = true
	default:
		return
	}
	p.moved = p.moved || virtq.BaseOf(v.Base) != d.vring(v.Index).left
	if p.rx && p.tx && !p.decided {
		p.decided = true
		if !p.goes && (!p.paused || p.moved) {
			d.port.DriverChanged()
		}
	}
}

// recordStop remembers why a queue stopped. It waits for nobody.
func (d *Device) recordStop(index int, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stopped[index] = err.Error()
	d.broken++
}

// Errors tells, by vring, why queues have stopped that are not started again.
func (d *Device) Errors() map[int]string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return maps.Clone(d.stopped)
}
