// Package stack implements devmem.Device with gVisor netstack over a NIC with header split. Netstack cannot read the
// payload that is in device memory.
//
// Received payload in device memory enters netstack as views of a shadow: address space that is reserved but
// not accessible (mmap PROT_NONE). Netstack passes such views on without reading them, and the stack finds the pages by
// a view's address. A read of a shadow faults. Bytes at other addresses are linear: they came in host memory. For
// payload that SendDevmem sends, netstack gets placeholders of the same length, and the link layer finds the payload in
// device memory by the sequence number.
//
// The stack keeps the pages of a frame that netstack may deliver until the application has read past the frame's end
// and has returned its tokens, or the connection is closed, or it has ended before it was accepted. The application
// owns sent memory again when no descriptor of the device points to it, and the peer has acknowledged it or the
// connection has ended.
//
// Locks, from the top: netstack's, a transmit queue's or a connection's tokens', a flow's, a shadow queue's, a
// pool's. The stack holds none of these while it calls the NIC, except that it may hold the first three for Transmit
// and Refill. configMu is separate: commands that change the NIC, and changes of bindings, hold it. No goroutine takes
// it under one of these locks.
//
// Not supported: several NICs, changes of addresses, IP forwarding, UDP sockets, TCP Fast Open, urgent data
// (its bytes stay in the stream).
//
// The package is not API (README, Stability).
package stack

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/devmembase"
	"vnic.dev/vnic/internal/ether"
	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/netlog"
)

// Options configure a stack. Addresses are required; New does not check that there are any.
type Options struct {
	Addresses []netip.Prefix // of the NIC, IPv4 or IPv6 or both
	Gateways  []netip.Addr   // of the default routes, at most one for each IP version

	MTU        int // 0: the NIC's
	SendBuffer int // bytes; 0: 1 MiB, which netstack raises up to 4 MiB
	// RecvBuffer is the size in bytes of a connection's receive buffer, twice the largest window. Without WideWindow, the
	// pool of a bound queue lowers it for connections that begin on the queue, if the pool holds less. 0: 1 MiB, which
	// netstack raises up to 8 MiB.
	RecvBuffer int
	// NoGSO makes the stack send no IP packets of more than the MTU: the NIC has none to cut into segments.
	NoGSO bool
	// RACK enables loss recovery by time with tail loss probes (RFC 8985). gVisor's RACK needs the workaround of
	// repeat.go. On a link that loses segments, an application should close its own direction only when it has
	// received all data: after the close gVisor sends no SACKs (tcp/connect.go: sendRaw).
	RACK bool
	// MinRTO is the minimum of the retransmission timeout (RFC 6298, 2.4). 0: limits.MinRTO.Here(), or with RACK
	// limits.MinRTORACK.Here().
	MinRTO time.Duration
	// WideWindow allows a receive window that is larger than the pool for its payload, as on Linux: the NIC may
	// then lack pages.
	WideWindow bool
	Log        *slog.Logger
}

// Stack implements devmem.Device.
type Stack struct {
	nic          NIC
	control      Control
	log          *slog.Logger
	ns           *stack.Stack
	link         *link
	tx           []*txQueue
	rx           []atomic.Pointer[shadowQueue] // by queue; nil: payload goes to host memory
	shadowQueues atomic.Pointer[[]*shadowQueue]
	flows        flows
	count        counters
	addrs        []netip.Prefix
	maxRecv      int // the largest receive buffer, in bytes
	wide         bool
	repeat       bool // the repeater runs
	cut          bool // the link layer cuts netstack's packets to the MTU's size

	stop    chan struct{}
	work    sync.WaitGroup
	failure atomic.Pointer[error] // set when the NIC has failed
	down    chan struct{}         // closed when failure is set

	conns     devmembase.Set[*Conn]
	listeners devmembase.Set[*Listener]

	configMu sync.Mutex // protects the fields below except txBinds
	nextID   uint32
	buffers  map[*Buffer]struct{}
	rules    map[devmem.FlowID]control.FlowRule // with the NIC's ids
	nextFlow devmem.FlowID
	rss      *control.RSS
	rxBinds  map[uint32]*rxBinding
	txBinds  sync.Map          // uint32 to *txBinding
	shadows  map[int][]*shadow // not in use, by number of slots
}

type counters struct {
	rxDropped, rxRefused, txDropped        atomic.Uint64
	rxDevice, rxLinear, txDevice, txLinear atomic.Uint64
}

var _ devmem.Device = (*Stack)(nil)

// New starts a stack on a NIC, and takes ownership of the NIC. If ctl is nil, nothing can be bound or
// steered. After an error the caller still owns the NIC.
func New(nic NIC, ctl Control, o Options) (*Stack, error) {
	if err := errors.Join(errLayout, errPlaceholder); err != nil {
		return nil, err
	}
	o.MTU = cmp.Or(o.MTU, nic.MTU())
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	netlog.Quiet()
	s := &Stack{
		nic: nic, control: ctl, log: o.Log, addrs: o.Addresses, wide: o.WideWindow, repeat: o.RACK,
		cut: o.NoGSO && !o.RACK, stop: make(chan struct{}), down: make(chan struct{}),
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
	// An emulated guest may be silent for long without loss.
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

// fail records that the NIC has failed with err, and aborts the connections, in a goroutine. Later calls do nothing.
func (s *Stack) fail(err error) {
	if s.failure.CompareAndSwap(nil, &err) {
		s.log.Error("nic stopped", "err", err)
		close(s.down)
		s.work.Go(func() {
			for _, c := range s.conns.All() {
				c.ep.Abort()
			}
		})
	}
}

// failed returns an error that wraps ENETDOWN and the NIC's error (ENODEV if the NIC was removed), or nil if the NIC
// has not failed.
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

// Close resets all connections, and closes all listeners, all bindings and the NIC.
func (s *Stack) Close() error {
	conns, first := s.conns.Close()
	if !first {
		return nil
	}
	listeners, _ := s.listeners.Close()
	for _, l := range listeners {
		l.Close()
	}
	for _, c := range conns {
		c.SetLinger(0)
		c.Close()
	}
	s.ns.Close() // closes connections that no Conn owns
	err := s.unbindAll()
	err = errors.Join(err, s.nic.Close()) // nothing arrives after this
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
	s.work.Wait() // forget may have ended bindings
	for _, free := range s.shadows {
		for _, sh := range free {
			err = errors.Join(err, sh.close())
		}
	}
	return err
}
