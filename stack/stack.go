// Package stack implements package devmem with gVisor netstack over a NIC with header split: a TCP stack whose
// payload it cannot read.
//
// Received payload in device memory enters netstack as views of a shadow: address space that is reserved but
// not accessible (mmap PROT_NONE). Netstack handles such views by their addresses, from which the stack finds
// the pages. A read of the payload faults. Bytes at other addresses are linear: they came in host memory.
// For transmit, netstack gets placeholders of the same length, and the link layer finds the payload in device
// memory by the sequence number.
//
// The stack keeps the pages of a delivered frame until the application has read past the frame's end and has
// returned its tokens, or closes the connection. The application owns sent memory again when the peer has
// acknowledged it, or the connection has ended, and no descriptor of the device points to it.
//
// Locks, from the top: netstack's, a transmit queue's or a connection's tokens', a flow's, a shadow queue's, a
// pool's. The stack holds none while it calls the NIC, except the first two, for Transmit and Refill. configMu
// is separate: commands that change the NIC, and changes of bindings, hold it. No goroutine takes it under one of
// these locks.
//
// Not supported: several NICs, changes of addresses, IP forwarding, UDP sockets, TCP Fast Open, urgent data
// (its bytes stay in the stream).
//
// The package and the packages below it are not API (README, Stability).
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

// Options configure a stack. Addresses are required.
type Options struct {
	Addresses []netip.Prefix // of the NIC, IPv4 and IPv6
	Gateways  []netip.Addr   // default routes, at most one for each family

	MTU        int // 0: the NIC's
	SendBuffer int // bytes; 0: 1 MiB, which netstack raises up to 4 MiB
	// RecvBuffer limits the unread bytes of a connection; without WideWindow a pool may lower it. 0: 1 MiB, which
	// netstack raises up to 8 MiB.
	RecvBuffer int
	// NoGSO sends frames of at most the MTU's size.
	NoGSO bool
	// RACK enables loss recovery by time with tail loss probes (RFC 8985). gVisor's RACK needs the workaround of
	// repeat.go. On a link that loses segments, close a connection only when all data has arrived: a gVisor peer
	// that has closed its own direction sends no SACK (tcp/connect.go: sendRaw).
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
	shadows  map[int][]*shadow // of closed bindings, by number of slots
}

type counters struct {
	rxDropped, rxRefused, txDropped        atomic.Uint64
	rxDevice, rxLinear, txDevice, txLinear atomic.Uint64
}

var _ devmem.Device = (*Stack)(nil)

// New starts a stack on a NIC, and takes ownership of the NIC. Without ctl nothing can be bound or
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

// fail ends the connections after the NIC has failed with err.
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

// failed returns the error with which the NIC has failed, or nil. It wraps ENETDOWN; if the NIC was removed,
// ENODEV too.
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
