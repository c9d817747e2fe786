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
	"vnic.dev/vnic/internal/virtionet"
	"vnic.dev/vnic/internal/wire"
	"vnic.dev/vnic/vhostuser"
	"vnic.dev/vnic/virtq"
)

// Errors of a driver that stop a receive queue.
var (
	errShortBuffer = fmt.Errorf("%w: receive buffer shorter than virtio_net_hdr", virtq.ErrBadChain)
	errReadable    = fmt.Errorf("%w: device-readable buffer on a receive queue", virtq.ErrBadChain)
	errNotSplit    = fmt.Errorf("%w: not a header buffer of virtio_net_hdr and %d bytes, and payload buffers, as header "+
		"split wants", virtq.ErrBadChain, HeaderLimit)
)

// HeaderLimit is how many bytes of a frame the device writes to a header buffer at most: a TCP packet's headers, or a
// whole frame of another kind.
const HeaderLimit = 256

// Config describes a device.
type Config struct {
	Files *dma.Files // registry of the files that this process maps, GPU memory included
	Port  nic.Config // New sets HeaderLimit and UnsplitQueue; QueuePairs 0 means 1
	// SetMemTable keeps the device from offering CONFIGURE_MEM_SLOTS, so that a frontend uses SET_MEM_TABLE.
	SetMemTable bool
	// Patience is the most time for which the guest's frames wait for a receiver that takes no frame; 0:
	// limits.Patience.Here().
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
	serving  chan struct{}
	eventFDs nic.EventFDs // call and error eventfds of the queues
	rssMu    sync.Mutex   // held by setDefaultRSS

	// Used by the control goroutine, on which the frontend's requests are carried out.
	mtu    uint16
	status uint8
	pair0  pair0

	mu        sync.Mutex
	stopped   map[int]string // under mu, by vring, for Errors
	rssDue    bool           // under mu: the monitor must call setDefaultRSS
	failures  map[int]error  // under mu, by vring: why the queue stopped, not logged yet
	unreached map[int]error  // under mu, by vring: unreachable memory, not logged yet

	// Limits for the monitor's log lines, by vring: a guest can break a queue and set it up again at any rate.
	stops, losses []nic.LogLimit
}

// pair0 records how rings started since the last connection ended, or since the last reset or pause (SetStatus), for
// noteStart.
type pair0 struct {
	rx, tx  bool // this ring of queue pair 0 has started
	goes    bool // a ring of any queue pair has continued a driver's work
	decided bool // both rings of queue pair 0 have started: noteStart calls DriverChanged no more
	paused  bool // the guest was paused
	moved   bool // a ring of queue pair 0 started at another place than where it stopped
}

var _ vhostuser.Device = (*Device)(nil)

// New makes a device.
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

// Port returns the device's port.
func (d *Device) Port() *nic.Port { return d.port }

// Space returns the guest's address space.
func (d *Device) Space() *dma.Space { return d.space }

// Serve serves a vhost-user frontend on conn, which it closes, until the frontend hangs up, there is an error, or ctx
// ends. One call at a time serves; the others wait.
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

// Unaccepted returns the result of vhostuser.Backend.Unaccepted.
func (d *Device) Unaccepted() string { return d.backend.Unaccepted() }

// Close ends the queues, detaches the port from its switch, and frees the device. Serve must have returned.
func (d *Device) Close() {
	for _, q := range d.tx {
		q.shut()
	}
	for _, q := range d.rx {
		q.shut()
	}
	d.port.Close()
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
		f &^= virtionet.FMQ
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
func (d *Device) FeatureNames() *[64]string { return &virtionet.FeatureNames }

// SetFeatures implements vhostuser.Device.
func (d *Device) SetFeatures(f uint64) error {
	if extra := f &^ (d.Features() | 1<<30); extra != 0 {
		return fmt.Errorf("SET_FEATURES: %v was not offered", vhostuser.Features{Bits: extra,
			Device: &virtionet.FeatureNames})
	}
	d.features.Store(f)
	d.setLimits()
	return nil
}

// MaxQueues implements vhostuser.Device.
func (d *Device) MaxQueues() int { return 2 * len(d.rx) }

// QueueNum implements vhostuser.QueueCounter: the number of queue pairs.
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

// SetStatus implements vhostuser.Device. Status 0 counts as a pause of the guest, and suspends RDMA.
func (d *Device) SetStatus(s uint8) error {
	if d.status = s; s == 0 {
		d.port.SuspendRDMA(true)
		d.pair0 = pair0{paused: true}
	}
	return nil
}

// GetConfig implements vhostuser.Device.
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

// MemoryChanged implements vhostuser.Device. It has nothing to do: addresses of buffers are translated for each frame,
// and rings are pinned.
func (d *Device) MemoryChanged() error { return nil }

// Disconnected implements vhostuser.Device. The port keeps what the driver's commands have set up: the frontend may
// reconnect with the same guest.
func (d *Device) Disconnected() {
	for i := range d.MaxQueues() {
		_, _ = d.StopQueue(i)
		_ = d.EnableQueue(i, false)
	}
	d.port.SuspendRDMA(true)
	d.port.Restarted()
	d.eventFDs.Release()
	d.status = 0
	d.pair0 = pair0{}
}

// noteStart records how a ring starts. Once both rings of queue pair 0 have started, noteStart decides: the driver is
// new (nic.Port.DriverChanged) if no ring has continued a driver's work so far, unless the guest was paused and both
// rings start where they stopped.
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

func (d *Device) recordStop(index int, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stopped[index] = err.Error()
}

// Errors returns the errors that have stopped queues, by vring, without queues that have started again since.
func (d *Device) Errors() map[int]string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return maps.Clone(d.stopped)
}
