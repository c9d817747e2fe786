package virtio

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/nic"
	"vnic.dev/vnic/vhostuser"
	"vnic.dev/vnic/virtq"
	"vnic.dev/vnic/wire"
)

// Why a queue stops.
var (
	errShortBuffer = fmt.Errorf("%w: receive buffer shorter than virtio_net_hdr", virtq.ErrBadChain)
	errReadable    = fmt.Errorf("%w: device-readable buffer on a receive queue", virtq.ErrBadChain)
	errNotSplit    = fmt.Errorf("%w: not a header buffer of 12 + 256 bytes and payload buffers, as header split wants", virtq.ErrBadChain)
	errKickGone    = errors.New("kick descriptor was closed by the frontend")
)

// HeaderLimit is the longest header that is split; a header buffer has netHdrLen more.
const HeaderLimit = 256

// Config says what a device is.
type Config struct {
	Files *dma.Files // of the process, with the GPUs' in it
	Port  nic.Config // Name, MAC, MTU, QueuePairs, GPUs, Log; the rest is this package's to set
	// SetMemTable makes the device refuse CONFIGURE_MEM_SLOTS, so that the frontend sends whole tables (tests).
	SetMemTable bool
}

// Device is one virtio-net NIC. It serves one frontend at a time.
type Device struct {
	log      *slog.Logger
	space    *dma.Space
	port     *nic.Port
	features atomic.Uint64 // negotiated
	limits   atomic.Pointer[wire.Limits]
	conf     Config
	watcher  *watcher
	rx       []*rxQueue
	tx       []*txQueue
	serving  sync.Mutex

	// Of the control goroutine.
	mtu     uint16
	status  uint8
	stopped map[int]string // why queues stopped, for Errors; under mu
	mu      sync.Mutex
}

var _ vhostuser.Device = (*Device)(nil)

// New makes a device. It is on no wire until Port().Attach, and moves nothing until a frontend is served.
func New(c Config) (*Device, error) {
	if c.Port.Log == nil {
		c.Port.Log = slog.New(slog.DiscardHandler)
	}
	d := &Device{log: c.Port.Log.With("port", c.Port.Name), conf: c, space: dma.NewSpace(c.Port.Name, c.Files),
		mtu: c.Port.MTU, stopped: map[int]string{}}
	d.setLimits()
	pairs := max(c.Port.QueuePairs, 1)
	queues := make([]nic.RxQueue, pairs)
	for i := range pairs {
		q := newRxQueue(d, 2*i)
		d.rx = append(d.rx, q)
		queues[i] = q
	}
	c.Port.QueuePairs = pairs
	c.Port.HeaderLimit = HeaderLimit
	c.Port.UnsplitQueue = 0
	var err error
	if d.port, err = nic.NewPort(c.Port, d.space, queues, func() wire.Limits { return *d.limits.Load() }); err != nil {
		return nil, err
	}
	if d.watcher, err = newWatcher(d); err != nil {
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

// Serve speaks vhost-user on conn, which it closes, until the frontend hangs up or ctx ends. A second call waits for the
// first to return.
func (d *Device) Serve(ctx context.Context, conn *net.UnixConn) error {
	d.serving.Lock()
	defer d.serving.Unlock()
	return vhostuser.NewBackend(d, d.space, d.log).Serve(ctx, conn)
}

// Close takes the device off the wire and frees it. Serve has returned.
func (d *Device) Close() {
	for _, q := range d.tx {
		d.stopTx(q)
		q.wake.close()
	}
	for _, q := range d.rx {
		d.stopRx(q)
		replace(&q.call, -1)
	}
	for _, q := range d.tx {
		replace(&q.call, -1)
	}
	d.port.Close()
	if d.watcher != nil {
		d.watcher.close()
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

// SetFeatures implements vhostuser.Device.
func (d *Device) SetFeatures(f uint64) error {
	if extra := f &^ (d.Features() | 1<<30); extra != 0 {
		return fmt.Errorf("SET_FEATURES: bits %#x were not offered", extra)
	}
	d.features.Store(f)
	d.setLimits()
	return nil
}

// MaxQueues implements vhostuser.Device.
func (d *Device) MaxQueues() int { return 2 * len(d.rx) }

// MTU implements vhostuser.Device.
func (d *Device) MTU(mtu uint16) error {
	if mtu < 68 {
		return fmt.Errorf("NET_SET_MTU: %d is less than 68", mtu)
	}
	d.mtu = mtu
	d.port.SetMTU(mtu)
	return nil
}

// Status implements vhostuser.Device.
func (d *Device) Status() uint8 { return d.status }

// SetStatus implements vhostuser.Device. 0 is device reset: all that commands set up on the port is gone.
func (d *Device) SetStatus(s uint8) error {
	d.status = s
	if s == 0 {
		return d.Reset()
	}
	return nil
}

// GetConfig implements vhostuser.Device: QEMU answers for the configuration space itself.
func (d *Device) GetConfig(uint32, []byte) error { return errors.ErrUnsupported }

// SetConfig implements vhostuser.Device.
func (d *Device) SetConfig(uint32, []byte) error { return errors.ErrUnsupported }

// StartQueue implements vhostuser.Device.
func (d *Device) StartQueue(v vhostuser.Vring) error {
	if _, err := d.StopQueue(v.Index); err != nil {
		closeAll(v.Kick, v.Call, v.Err)
		return err
	}
	f := d.features.Load()
	vq, err := virtq.NewDevice(d.space, virtq.Config{Size: v.Size, Desc: v.Desc, Avail: v.Avail, Used: v.Used,
		Base: v.Base, Indirect: f&fIndirect != 0, EventIdx: f&fEventIdx != 0})
	if err == nil && v.Kick < 0 {
		err = errors.New("no kick descriptor: polling is not offered")
	}
	if err != nil {
		if vq != nil {
			vq.Close()
		}
		closeAll(v.Kick, v.Call, v.Err)
		return fmt.Errorf("vring %d: %w", v.Index, err)
	}
	closeAll(v.Err)
	d.mu.Lock()
	delete(d.stopped, v.Index)
	d.mu.Unlock()
	if v.Base != 0 {
		d.port.Resumed()
	}
	if v.Index%2 == 1 {
		q := d.tx[v.Index/2]
		if v.Call >= 0 {
			replace(&q.call, v.Call)
		}
		q.vq, q.kick = vq, v.Kick
		q.start(v.Running)
		return nil
	}
	q := d.rx[v.Index/2]
	if v.Call >= 0 {
		replace(&q.call, v.Call)
	}
	q.mu.Lock()
	q.vq, q.kick, q.started, q.err, q.staged = vq, v.Kick, false, nil, false
	q.mrg = f&fMrgRxbuf != 0
	if v.Running {
		q.started = true
		q.vq.DisableKick()
	}
	q.mu.Unlock()
	return d.watcher.add(v.Kick, v.Index)
}

// SetCall implements vhostuser.Device. The new descriptor is fired once: a call may have been lost between the two.
func (d *Device) SetCall(index, fd int) error {
	call := d.callOf(index)
	replace(call, fd)
	signal(call.Load())
	return nil
}

// SetErr implements vhostuser.Device.
func (d *Device) SetErr(_, fd int) error {
	closeAll(fd)
	return nil
}

// EnableQueue implements vhostuser.Device.
func (d *Device) EnableQueue(index int, on bool) error {
	if index%2 == 1 {
		d.tx[index/2].enabled.Store(on)
		return nil
	}
	q := d.rx[index/2]
	q.mu.Lock()
	defer q.mu.Unlock()
	q.enabled = on
	q.wake()
	return nil
}

// StopQueue implements vhostuser.Device. What a transmit queue holds is sent or dropped first.
func (d *Device) StopQueue(index int) (base uint16, err error) {
	if index%2 == 1 {
		return d.stopTx(d.tx[index/2]), nil
	}
	return d.stopRx(d.rx[index/2]), nil
}

func (d *Device) stopTx(q *txQueue) (base uint16) {
	q.halt()
	if q.vq == nil {
		return 0
	}
	base = q.vq.Base()
	q.vq.Close()
	q.vq = nil
	closeAll(q.kick)
	q.kick = -1
	return base
}

func (d *Device) stopRx(q *rxQueue) (base uint16) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.vq == nil {
		return 0
	}
	d.watcher.remove(q.kick)
	base = q.vq.Base()
	q.vq.Close()
	q.vq = nil
	closeAll(q.kick)
	q.kick, q.started = -1, false
	q.wake()
	return base
}

// Reset implements vhostuser.Device.
func (d *Device) Reset() error {
	for i := range d.MaxQueues() {
		if _, err := d.StopQueue(i); err != nil {
			return err
		}
	}
	d.port.Reset()
	return nil
}

// QueueNum implements vhostuser.QueueCounter: QEMU and DPDK want the number of queue pairs.
func (d *Device) QueueNum() uint64 { return uint64(len(d.rx)) }

// MemoryChanged implements vhostuser.Device. Queues whose rings are concerned have been stopped before and are started
// again after; buffers are looked up for each frame.
func (d *Device) MemoryChanged() error { return nil }

// Disconnected implements vhostuser.Device. The port's state stays: the frontend may come back.
func (d *Device) Disconnected() {
	for i := range d.MaxQueues() {
		_, _ = d.StopQueue(i)
		_ = d.EnableQueue(i, false)
		replace(d.callOf(i), -1)
	}
}

func (d *Device) callOf(index int) *atomic.Pointer[os.File] {
	if index%2 == 1 {
		return &d.tx[index/2].call
	}
	return &d.rx[index/2].call
}

// report logs once why a queue stopped.
func (d *Device) report(index int) {
	var err error
	if index%2 == 1 {
		q := d.tx[index/2]
		if e := q.err.Load(); e != nil {
			err = *e
		}
	} else {
		q := d.rx[index/2]
		q.mu.Lock()
		err = q.err
		q.mu.Unlock()
	}
	if err == nil {
		return
	}
	d.mu.Lock()
	_, known := d.stopped[index]
	d.stopped[index] = err.Error()
	d.mu.Unlock()
	if !known {
		dir := [2]string{"rx", "tx"}[index%2]
		d.log.Error("queue stopped until the driver resets it", "queue", fmt.Sprint(dir, index/2), "err", err)
	}
}

// Errors tells, by vring, why queues have stopped.
func (d *Device) Errors() map[int]string {
	d.mu.Lock()
	defer d.mu.Unlock()
	m := make(map[int]string, len(d.stopped))
	for k, v := range d.stopped {
		m[k] = v
	}
	return m
}

// kicked is called by the watcher when the driver has kicked a receive queue.
func (q *rxQueue) kicked() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.vq == nil {
		return
	}
	drain(q.kick)
	q.started = true
	q.vq.DisableKick()
	q.wake()
}

// replace puts a new eventfd (none if fd is negative) in the place of the old one, which is closed.
func replace(p *atomic.Pointer[os.File], fd int) {
	var f *os.File
	if fd >= 0 {
		// A full eventfd must stop neither a worker's thread nor, by way of the netpoller, its goroutine: os.File leaves
		// descriptors alone that block when it gets them.
		_ = unix.SetNonblock(fd, false)
		f = os.NewFile(uintptr(fd), "call")
		_ = unix.SetNonblock(fd, true)
	}
	if old := p.Swap(f); old != nil {
		_ = old.Close()
	}
}

func closeAll(fds ...int) {
	for _, fd := range fds {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}
