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
	"vnic.dev/vnic/internal/virtionet"
)

// NIC is a virtio-net device in use.
type NIC struct {
	t        transport
	tmu      sync.Mutex // held while unbind stops or restarts a queue of t, and while a failure halts t
	opts     Options
	log      *slog.Logger
	mac      net.HardwareAddr
	mtu      int
	gpus     []GPUInfo // open sets it; IdentifyGPUs replaces it, under gpusMu, before Start
	features uint64
	offloads Offloads
	ctl      *control.Client

	rx []*rxQueue
	tx []*txQueue

	gpusMu             sync.Mutex
	gpusUsed, gpusLost atomic.Uint64 // by bit: GPUs that rings may point to or have pointed to; GPUs that were removed

	receiver atomic.Pointer[Receiver] // set once, by Start
	poller   poller

	mu     sync.Mutex
	calls  []*call    // under mu: the calls of NIC.do that wait
	ended  bool       // under mu: NIC.do returns ErrClosed
	binder sync.Mutex // held by BindQueue, UnbindQueue and AllocDMA, and by Close at first
	closed bool       // under binder

	closing  sync.Once
	closeErr error

	hasCalls atomic.Bool
	stop     atomic.Bool
	sleeping atomic.Bool           // the polling goroutine sleeps, is about to, or has failed
	fatal    atomic.Pointer[error] // set by gone: the polling goroutine has to stop with this error
	err      atomic.Pointer[error]
	failed   chan struct{} // closed when err is set
	done     chan struct{} // closed when the polling goroutine ends

	life        context.Context // ends with Close
	endLife     context.CancelFunc
	background  sync.WaitGroup
	settingUp   atomic.Bool
	lost        atomic.Bool // in-band state was lost since setUpOnce last cleared this
	wakePending atomic.Bool // the polling goroutine has to call the Receiver's Wake
	linkDown    atomic.Bool
}

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

func (n *NIC) gone(err error) {
	n.fatal.CompareAndSwap(nil, &err)
	n.wake()
}

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

func (n *NIC) startDevice() error {
	var ctrl *controlQueue
	if vq := n.t.controlQueue(); vq >= 0 && n.features&virtionet.FCtrlVQ != 0 && len(n.tx) > 1 {
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

// MAC returns the NIC's address.
func (n *NIC) MAC() net.HardwareAddr { return slices.Clone(n.mac) }

// MTU returns the size of the largest IP packet, in bytes.
func (n *NIC) MTU() int { return n.mtu }

// Offloads returns the negotiated offloads.
func (n *NIC) Offloads() Offloads { return n.offloads }

// QueuePairs returns the number of pairs of a receive and a transmit queue in use.
func (n *NIC) QueuePairs() int { return len(n.tx) }

// GPUs returns the GPUs that [OpenPCI] found or [Attach] announced; after [NIC.IdentifyGPUs], the GPUs that
// the NIC reaches and the guest sees as BARs.
func (n *NIC) GPUs() []GPUInfo { return slices.Clone(n.gpus) }

// Control returns the client of the in-band channel to the NIC.
func (n *NIC) Control() *control.Client { return n.ctl }

// AllocDMA allocates memory that the caller and the device share, page aligned and contiguous, and at most 2 MiB in a
// guest. iova is its address for the device. [NIC.Close] frees it, unless the device may still write to it.
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

// Start sets the Receiver, and returns Err. Before, received frames are dropped. A second call fails.
func (n *NIC) Start(r Receiver) error {
	if r == nil {
		return errors.New("no receiver")
	}
	if !n.receiver.CompareAndSwap(nil, &r) {
		return errors.New("the NIC has a receiver already")
	}
	return n.Err()
}

// Err returns the error with which the NIC has stopped (ErrClosed after Close, if no other error came before), or
// nil. When the NIC stops by an error, and not by Close, it calls the Receiver's Wake, if there is a Receiver.
func (n *NIC) Err() error {
	if e := n.err.Load(); e != nil {
		return *e
	}
	return nil
}

func (n *NIC) fail(err error) {
	if n.err.CompareAndSwap(nil, &err) {
		close(n.failed)
	}
}

// wake ends the polling goroutine's sleep, if it sleeps or is about to. The caller must have stored the reason
// before.
func (n *NIC) wake() {
	if n.sleeping.Load() {
		n.t.sleeper().wake()
	}
}

// Close stops the device, returns the pages that bound queues hold to their PageSources, and frees memory. It waits
// for running callbacks. It does not report frames in flight to the Receiver.
func (n *NIC) Close() error {
	n.endLife()
	n.closing.Do(func() { n.closeErr = n.close() })
	return n.closeErr
}

func (n *NIC) close() error {
	n.binder.Lock() // BindQueue, UnbindQueue and AllocDMA have returned, and later ones fail
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
