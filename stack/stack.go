// Package stack implements package devmem with gVisor netstack over a NIC with header split: a TCP stack that carries
// payload it cannot read.
//
// Received payload in device memory enters netstack as views of a shadow: address space that is reserved and not
// accessible (mmap PROT_NONE). Netstack trims, reorders, merges and drops such views by their addresses; when it
// delivers them, the address says which pages of which binding the bytes lie in. Any read of payload by the stack is a
// fault: the shadow is the proof that it processes headers only. Bytes at any other address are linear: they were in a
// header buffer. For transmission netstack is given as many bytes of nothing, and the link layer says, by sequence
// number, where in device memory they lie; a retransmission reads them there again.
//
// Pages of a received frame are held until the application has read past the frame's end, and for
// each token that it was given; until then they are not written to. Memory that is sent is the
// application's again when the peer has acknowledged it and no descriptor of the device points at
// it.
//
// Exhaustion recovers: data out of order is dropped when a pool has few pages left, the segment that is missing never.
//
// Locks, from the top: netstack's, a transmit queue's or a connection's tokens', a flow's, a shadow
// queue's, a pool's. None is held while the NIC is called except the first two, for Transmit and
// for Refill. configMu is apart from these: a command to the NIC, and a binding, hold it meanwhile,
// and take connMu, shadow queues' and pools' under it; it is taken under no other lock, so a
// binding that ends under one leaves the rest to a goroutine.
//
// It does not know: several NICs or addresses that change, IP forwarding, UDP sockets, TCP Fast Open, urgent data (its
// bytes stay in the stream).
//
// The package and those below it are not API (README, Stability).
package stack

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/ether"
	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/netlog"
)

// Options are a stack's. Addresses are needed.
type Options struct {
	Addresses []netip.Prefix // of the NIC, IPv4 and IPv6
	Gateways  []netip.Addr   // default routes, one for each family

	MTU        int // 0: the NIC's
	SendBuffer int // bytes of a connection that may be unacknowledged; 0: 1 MiB, and up to 4 MiB by itself
	// bytes of a connection that may be unread; the window is half of it. 0: 1 MiB, and up to 8 MiB by
	// itself
	RecvBuffer int
	// NoGSO has frames of the MTU's size sent. Netstack still makes packets of up to 64 KiB, which are cut before they go
	// to the NIC, as Linux does for a NIC without TSO (GSO); with RACK, which has a time for each segment sent, it makes
	// the segments itself.
	NoGSO bool
	// RACK is loss recovery by time with tail loss probes (RFC 8985), for links that lose segments. Without it recovery is
	// by SACK alone (RFC 6675), and nothing is sent twice only because an acknowledgement is late, as it often is from
	// emulated guests. gVisor's RACK needs the help of repeat.go. And it hardly recovers
	// what a gVisor loses that has closed its own direction before, as that sends no SACK then (tcp/connect.go: sendRaw):
	// on a link that loses, close when all has arrived.
	RACK bool
	// MinRTO is how long at the least an acknowledgement may take before a segment counts as lost (RFC 6298, 2.4). 0: a
	// second, 200 ms with RACK.
	MinRTO time.Duration
	// WideWindow lets a connection's receive window be larger than the pool that its payload comes to, as Linux does; the
	// NIC drops what then finds no page.
	WideWindow bool
	Log        *slog.Logger
}

// Stack is a devmem.Device.
type Stack struct {
	nic          NIC
	control      Control
	log          *slog.Logger
	ns           *stack.Stack
	link         *link
	tx           []*txQueue
	rx           []atomic.Pointer[shadowQueue] // by queue; nil: host memory
	shadowQueues atomic.Pointer[[]*shadowQueue]
	flows        flows
	count        counters
	addrs        []netip.Prefix
	maxRecv      int // bytes of a receive buffer
	wide         bool
	repeat       bool // the last segment of a flow, when it is silent
	cut          bool // netstack's packets, to the MTU's size

	stop    chan struct{}
	work    sync.WaitGroup
	failure atomic.Pointer[error] // the NIC is gone
	down    chan struct{}         // closed with failure

	connMu    sync.Mutex
	conns     map[*Conn]struct{}
	listeners map[*Listener]struct{}
	closed    bool

	configMu sync.Mutex // of what follows but txBinds, and held during commands to the NIC
	nextID   uint32
	buffers  map[*Buffer]struct{}
	rules    map[devmem.FlowID]control.FlowRule // as the NIC has them
	nextFlow devmem.FlowID
	rss      *control.RSS
	rxBinds  map[uint32]*rxBinding
	txBinds  sync.Map          // uint32 to *txBinding: senders look without a lock
	shadows  map[int][]*shadow // of closed bindings, by slots: netstack may still have views of them
}

type counters struct {
	rxPackets, rxDropped, rxRefused, txDropped atomic.Uint64
	rxDevice, rxLinear, txDevice, txLinear     atomic.Uint64
}

var _ devmem.Device = (*Stack)(nil)

// New starts a stack on a NIC, which it owns from then on; without control nothing can be bound or
// steered. If it fails, the NIC is still the caller's.
func New(nic NIC, ctl Control, o Options) (*Stack, error) {
	if errLayout != nil {
		return nil, errLayout
	}
	o.MTU = cmp.Or(o.MTU, nic.MTU())
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	netlog.Quiet()
	s := &Stack{
		nic: nic, control: ctl, log: o.Log, addrs: o.Addresses, wide: o.WideWindow, repeat: o.RACK,
		cut: o.NoGSO && !o.RACK, stop: make(chan struct{}), down: make(chan struct{}),
		conns: map[*Conn]struct{}{}, listeners: map[*Listener]struct{}{},
		rules:   map[devmem.FlowID]control.FlowRule{},
		buffers: map[*Buffer]struct{}{}, rxBinds: map[uint32]*rxBinding{}, shadows: map[int][]*shadow{},
	}
	s.flows = flows{s: s, m: map[flowKey]*flow{}, kick: make(chan struct{}, 1)}
	s.shadowQueues.Store(&[]*shadowQueue{})
	s.link = &link{Link: ether.Link{Addr: tcpip.LinkAddress(nic.MAC()), Bytes: uint32(o.MTU)}, s: s,
		gso: !o.NoGSO || s.cut}
	s.rx = make([]atomic.Pointer[shadowQueue], nic.QueuePairs())
	for i := range nic.QueuePairs() {
		s.tx = append(s.tx, &txQueue{s: s, queue: i})
	}
	s.ns = ether.New()
	if err := s.configure(o); err != nil {
		s.ns.Destroy()
		return nil, err
	}
	s.work.Go(func() { s.flows.sweeper(s.stop) })
	if s.repeat {
		s.work.Go(func() { s.flows.repeater(s.stop) })
	}
	if err := nic.Start(receiver{s}); err != nil {
		close(s.stop)
		s.work.Wait()
		s.ns.Destroy()
		return nil, fmt.Errorf("start the nic: %w", err)
	}
	return s, nil
}

func (s *Stack) configure(o Options) error {
	send := tcpip.TCPSendBufferSizeRangeOption{Min: 16 << 10, Default: 1 << 20, Max: 4 << 20}
	if o.SendBuffer > 0 {
		send.Min, send.Default, send.Max = min(send.Min, o.SendBuffer), o.SendBuffer, o.SendBuffer
	}
	recv := tcpip.TCPReceiveBufferSizeRangeOption{Min: 16 << 10, Default: 1 << 20, Max: 8 << 20}
	if o.RecvBuffer > 0 {
		recv.Min, recv.Default, recv.Max = min(recv.Min, o.RecvBuffer), o.RecvBuffer, o.RecvBuffer
	}
	s.maxRecv = recv.Max
	// A guest that is emulated on a busy host may be silent for long without having lost anything.
	rto := limits.MinRTO.Here()
	recovery := tcpip.TCPRecovery(0)
	if o.RACK {
		rto, recovery = limits.MinRTORACK.Here(), tcpip.TCPRACKLossDetection
	}
	if o.MinRTO > 0 {
		rto = o.MinRTO
	}
	if err := ether.SetTCP(s.ns, &send, &recv, ether.MinRTO(rto), &recovery); err != nil {
		return err
	}
	if err := s.ns.CreateNIC(ether.NIC, s.link); err != nil {
		return fmt.Errorf("netstack: %s", err)
	}
	var routes []tcpip.Route
	for _, p := range o.Addresses {
		r, err := ether.AddAddress(s.ns, p)
		if err != nil {
			return err
		}
		routes = append(routes, r)
	}
	for _, g := range o.Gateways {
		routes = append(routes, ether.DefaultRoute(g))
	}
	s.ns.SetRouteTable(routes)
	return nil
}

// fail ends every connection, and all that waits for one: there is no NIC any more.
func (s *Stack) fail(err error) {
	if s.failure.CompareAndSwap(nil, &err) {
		s.log.Error("nic stopped", "err", err)
		close(s.down)
		s.work.Go(func() {
			for _, c := range s.allConns() {
				c.ep.Abort()
			}
		})
	}
}

// failed says why nothing works any more: ENETDOWN, and first of all ENODEV if the NIC has been taken away; nil: it
// works.
func (s *Stack) failed() error {
	err := s.failure.Load()
	switch {
	case err == nil:
		return nil
	case errors.Is(*err, syscall.ENODEV):
		return fmt.Errorf("%w (%w)", *err, syscall.ENETDOWN)
	}
	return fmt.Errorf("%w: %w", syscall.ENETDOWN, *err)
}

func (s *Stack) allConns() []*Conn {
	s.connMu.Lock()
	defer s.connMu.Unlock()
	return slices.Collect(maps.Keys(s.conns))
}

// add notes an end of connections that is to be closed with the stack; false if the stack is closed
// already.
func add[E comparable](s *Stack, open map[E]struct{}, e E) bool {
	s.connMu.Lock()
	defer s.connMu.Unlock()
	if !s.closed {
		open[e] = struct{}{}
	}
	return !s.closed
}

func remove[E comparable](s *Stack, open map[E]struct{}, e E) {
	s.connMu.Lock()
	defer s.connMu.Unlock()
	delete(open, e)
}

// Close resets every connection, ends every binding, and closes the NIC.
func (s *Stack) Close() error {
	s.connMu.Lock()
	if s.closed {
		s.connMu.Unlock()
		return nil
	}
	s.closed = true
	ls := slices.Collect(maps.Keys(s.listeners))
	s.connMu.Unlock()
	for _, l := range ls {
		l.Close()
	}
	for _, c := range s.allConns() {
		c.SetLinger(0)
		c.Close()
	}
	s.ns.Close() // connections without an owner
	err := s.unbindAll(context.Background())
	err = errors.Join(err, s.nic.Close()) // from here on nothing comes in
	s.configMu.Lock()
	for _, b := range s.rxBinds {
		b.pool.Close(true)
	}
	s.configMu.Unlock()
	close(s.stop)
	s.work.Wait()
	s.ns.Wait()
	for _, q := range s.tx {
		q.close()
	}
	s.flows.mu.Lock()
	all := s.flows.m
	s.flows.m = map[flowKey]*flow{}
	s.flows.mu.Unlock()
	for _, f := range all {
		s.flows.forget(f)
	}
	s.work.Wait() // bindings that ended by this
	for _, free := range s.shadows {
		for _, sh := range free {
			err = errors.Join(err, sh.close())
		}
	}
	return err
}
