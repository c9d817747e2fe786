package driver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/control"
)

// NIC is a virtio-net device in use.
type NIC struct {
	t        transport
	tmu      sync.Mutex // held while t's queues are set up or stopped
	opts     Options
	log      *slog.Logger
	mac      net.HardwareAddr
	mtu      int
	gpus     []GPUInfo // set before Start, under gpusMu
	features uint64
	offloads Offloads
	ctl      *control.Client

	rx []*rxQueue
	tx []*txQueue

	gpusMu             sync.Mutex
	gpusUsed, gpusLost atomic.Uint64 // by bit: rings point there, or did; it has been taken away

	receiver atomic.Pointer[Receiver] // set once, by Start
	poller   poller

	mu     sync.Mutex // orders calls on the polling goroutine against its end, and Bind, Unbind and Close
	calls  []*call    // waiting; under mu
	ended  bool       // the polling goroutine takes no more; under mu
	binder sync.Mutex // held by BindQueue and UnbindQueue for all of their time
	closed bool       // under binder

	closing  sync.Once
	closeErr error

	hasCalls atomic.Bool
	stop     atomic.Bool
	sleeping atomic.Bool           // the polling goroutine is, or about to be
	fatal    atomic.Pointer[error] // for the polling goroutine to stop with
	err      atomic.Pointer[error]
	failed   chan struct{} // closed with err
	done     chan struct{} // closed by the polling goroutine

	// The in-band set-up after a loss of state: see generation.go.
	life        context.Context // ends with Close
	endLife     context.CancelFunc
	background  sync.WaitGroup
	settingUp   atomic.Bool
	lost        atomic.Bool // in-band state is, and Options.OnGeneration was not called yet
	wakePending atomic.Bool // the Receiver is to be woken
	linkDown    atomic.Bool
}

// open starts the device behind a transport, which it owns.
func open(t transport, o *Options, mac net.HardwareAddr, mtu int, gpus []GPUInfo) (*NIC, error) {
	n := &NIC{t: t, opts: *o, log: o.Log, gpus: gpus, failed: make(chan struct{}), done: make(chan struct{})}
	n.life, n.endLife = context.WithCancel(context.Background())
	if err := n.initialize(mac, mtu); err != nil {
		n.endLife()
		return nil, errors.Join(err, t.close())
	}
	n.ctl = control.NewClient((*controlSender)(n), control.ClientOptions{MAC: [6]byte(n.mac),
		OnGeneration: n.onGeneration})
	n.poller.init(n)
	go n.run()
	if err := t.watch(n.gone, n.removeGPUAt); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	n.log.Info("network device started", "mac", n.mac.String(), "mtu", n.mtu, "pairs", len(n.tx), "ring", n.opts.RingSize,
		"features", featureString(n.features))
	return n, nil
}

// gone is called when the device has gone away.
func (n *NIC) gone(err error) {
	n.fatal.CompareAndSwap(nil, &err)
	n.wake()
}

// initialize takes the device to where it moves frames.
func (n *NIC) initialize(mac net.HardwareAddr, mtu int) (err error) {
	if n.features, err = n.t.negotiate(); err != nil {
		return err
	}
	n.offloads = offloads(n.features)
	if err := n.readConfig(mac, mtu); err != nil {
		return err
	}
	if err := n.makeQueues(); err != nil {
		return err
	}
	return n.startDevice()
}

// makeQueues makes rings and buffers for the pairs in use.
func (n *NIC) makeQueues() error {
	for i := range n.opts.QueuePairs {
		rx, err := newRxQueue(n, i)
		if err != nil {
			return fmt.Errorf("receive queue %d: %w", i, err)
		}
		n.rx = append(n.rx, rx)
		tx, err := newTxQueue(n, i)
		if err != nil {
			return fmt.Errorf("transmit queue %d: %w", i, err)
		}
		n.tx = append(n.tx, tx)
	}
	return nil
}

// startDevice lets the queues go and posts the first buffers.
func (n *NIC) startDevice() error {
	var ctrl *controlQueue
	if vq := n.t.controlQueue(); vq >= 0 && n.features&featCtrlVQ != 0 && len(n.tx) > 1 {
		var err error
		if ctrl, err = newControlQueue(n.t, vq, n.features); err != nil {
			return fmt.Errorf("control queue %d: %w", vq, err)
		}
	}
	if err := n.t.start(); err != nil {
		return err
	}
	if ctrl != nil {
		if err := ctrl.setPairs(len(n.tx)); err != nil {
			return fmt.Errorf("enabling %d queue pairs: %w", len(n.tx), err)
		}
	}
	for _, q := range n.rx[:n.opts.HostQueues] {
		if err := q.postHost(); err != nil {
			return err
		}
	}
	return nil
}

// MAC is the NIC's address.
func (n *NIC) MAC() net.HardwareAddr { return slices.Clone(n.mac) }

// MTU is the largest IP packet, in bytes.
func (n *NIC) MTU() int { return n.mtu }

// Offloads are what the device does for us.
func (n *NIC) Offloads() Offloads { return n.offloads }

// QueuePairs is how many receive queues, and transmit queues, are in use.
func (n *NIC) QueuePairs() int { return len(n.tx) }

// GPUs lists the GPUs in reach.
func (n *NIC) GPUs() []GPUInfo { return slices.Clone(n.gpus) }

// Control is the in-band channel to the NIC.
func (n *NIC) Control() *control.Client { return n.ctl }

// AllocDMA gives memory that we and the device can reach, the device at iova: tables and staging buffers of jobs. It is
// page aligned and contiguous, at most 2 MiB in a guest, and there until Close. There is no way to give it back.
func (n *NIC) AllocDMA(size int) (b []byte, iova uint64, err error) {
	n.binder.Lock()
	defer n.binder.Unlock()
	if n.closed {
		return nil, 0, fmt.Errorf("NIC: %w", ErrClosed)
	}
	if size <= 0 {
		return nil, 0, fmt.Errorf("DMA memory: %d bytes: %w", size, unix.EINVAL)
	}
	m, err := n.t.alloc(size)
	if err != nil {
		return nil, 0, err
	}
	return m.b[:size], m.addr, nil
}

// Start sets the Receiver of the frames; before it, they are dropped.
func (n *NIC) Start(r Receiver) error {
	if r == nil {
		return errors.New("no receiver")
	}
	if !n.receiver.CompareAndSwap(nil, &r) {
		return errors.New("the NIC has a receiver already")
	}
	return n.Err()
}

// Err says why the NIC has stopped, nil if it has not. The Receiver is woken when it does.
func (n *NIC) Err() error {
	if e := n.err.Load(); e != nil {
		return *e
	}
	return nil
}

// fail records why the NIC stops. The first reason stays.
func (n *NIC) fail(err error) {
	if n.err.CompareAndSwap(nil, &err) {
		close(n.failed)
	}
}

// wake ends the polling goroutine's sleep, for a reason that was stored before.
func (n *NIC) wake() {
	if n.sleeping.Load() {
		n.t.sleeper().wake()
	}
}

// Close stops the device and gives all pages back. It waits for callbacks under way. The Receiver is not called
// again, not even for what is still in flight.
func (n *NIC) Close() error {
	n.endLife()
	n.closing.Do(func() { n.closeErr = n.close() })
	return n.closeErr
}

func (n *NIC) close() error {
	n.binder.Lock() // calls that bind have ended, and no new ones begin
	n.closed = true
	n.binder.Unlock()
	n.ctl.Close()
	n.stop.Store(true)
	n.wake()
	<-n.done
	n.fail(fmt.Errorf("NIC: %w", ErrClosed))
	n.background.Wait()
	for _, q := range n.tx {
		q.close(n.Err())
	}
	err := n.t.halt()
	for _, q := range n.rx {
		q.giveBack()
	}
	return errors.Join(err, n.t.close())
}
