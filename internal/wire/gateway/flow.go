package gateway

import (
	"context"
	"math"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"vnic.dev/vnic/splitter"
)

const (
	flowIdle    = 2 * time.Minute // RFC 4787, REQ-5; RFC 5508, REQ-2
	flowSockets = 8               // most sockets that send for a flow (flow.sends, outerFlow.extra)
	flowOpens   = 4               // most flows of NAT that open sockets at a time (turns.go)
)

// flowKey identifies a NAT flow. It has no server port: filtering is address-dependent (RFC 4787, 5), because TFTP
// servers answer from another port (RFC 1350, 4).
type flowKey struct {
	proto  uint8
	guest  netip.AddrPort // for an echo the port is its identifier
	server netip.Addr     // as the guest sees it
}

type flows struct {
	mu       sync.Mutex
	byKey    map[flowKey]*flow
	forwards map[forwardKey]*outerFlow
}

func (fs *flows) find(key flowKey) *flow {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return fs.byKey[key]
}

// flowLife is a part of flows of NAT and of forwards: the quota entry, the context, and the time and counts that rank
// and sweep use.
type flowLife struct {
	clock func() time.Time
	entry *entry
	ctx   context.Context
	end   context.CancelFunc

	last            atomic.Int64  // when a datagram last came, either way, in nanoseconds since epoch
	asked, answered atomic.Uint32 // datagrams from the side that began the flow, and from the other side
}

var epoch = time.Now()

// begin takes a quota entry for a flow; false: there is none for owner o, or the gateway is being closed. After true,
// when l.ctx ends, a goroutine for which Gateway.Close waits calls closed and gives the entry back.
func (l *flowLife) begin(g *Gateway, o owner, closed func()) bool {
	if !g.begin() {
		return false
	}
	l.clock = g.now
	l.ctx, l.end = context.WithCancel(g.ctx)
	l.touch()
	if l.entry = g.udp.takeRanked(o, l.end, l.rank); l.entry == nil {
		l.end()
		g.end()
		return false
	}
	g.count.udpFlows.Add(1)
	context.AfterFunc(l.ctx, func() {
		defer g.end()
		closed()
		l.entry.give()
	})
	return true
}

func (l *flowLife) touch() { l.last.Store(int64(l.clock().Sub(epoch))) }

// rank orders an owner's flows for eviction, lowest first: those with one datagram each way, such as DNS questions,
// before others, and those silent for longer first.
func (l *flowLife) rank() int64 {
	if l.asked.Load() == 1 && l.answered.Load() == 1 {
		return l.last.Load() - math.MaxInt64/2
	}
	return l.last.Load()
}

func (fs *flows) sweep(g *Gateway) {
	since := int64(g.now().Add(-g.udpIdle).Sub(epoch))
	end := func(l *flowLife) {
		if l.last.Load() <= since {
			l.end()
		}
	}
	fs.mu.Lock()
	defer fs.mu.Unlock()
	for _, f := range fs.byKey {
		end(&f.flowLife)
	}
	for _, f := range fs.forwards {
		end(&f.flowLife)
	}
}

func (g *Gateway) sweepFlows() {
	for again := time.NewTicker(g.udpIdle / 8); ; {
		select {
		case <-again.C:
			g.flows.sweep(g)
		case <-g.ctx.Done():
			again.Stop()
			return
		}
	}
}

// flow is a datagram flow of NAT between a guest's port, or echo identifier, and a server.
type flow struct {
	flowLife
	backlog
	key  flowKey
	host netip.Addr // the server's address as this machine sees it
	back *stack.Route

	// hears receives from the server's ports to which no socket of sends is connected; nil for echoes, and before the
	// first socket is open. The backlog's mu guards hears and sends.
	hears *flowSocket
	sends []*flowSocket
}

// outgoing is a datagram from a guest.
type outgoing struct {
	to   permit // its port is 0 for an echo; not set for a forward, in troubled and for flow.hears
	port uint16 // the server's port as the guest sees it; for a forward, the guest's port
	ttl  uint8
	df   bool
	data []byte
}

// flowOf finds a flow, or begins it; nil: it cannot begin. No two calls may run at once: port.run's goroutine makes
// them.
func (g *Gateway) flowOf(key flowKey, from owner, host netip.Addr) *flow {
	f := g.flows.find(key)
	if f != nil {
		return f
	}
	f = &flow{key: key, host: host, back: g.routeTo(key.guest.Addr(), key.server)}
	if f.back == nil {
		return nil
	}
	f.backlog.init(g, f.now, f.later)
	if !f.begin(g, from, f.close) {
		f.back.Release()
		return nil
	}
	g.flows.mu.Lock()
	defer g.flows.mu.Unlock()
	if f.ctx.Err() == nil { // otherwise close may have run already
		g.flows.byKey[key] = f
	}
	return f
}

func (f *flow) close() {
	fs := &f.gateway.flows
	fs.mu.Lock()
	if fs.byKey[f.key] == f {
		delete(fs.byKey, f.key)
	}
	fs.mu.Unlock()
	f.mu.Lock()
	f.shut()
	sockets := f.sends
	if f.hears != nil {
		sockets = append(sockets, f.hears)
	}
	f.sends, f.hears = nil, nil
	f.mu.Unlock()
	closeAll(sockets)
	f.back.Release()
}

func (f *flow) permitFor(port uint16) (permit, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range f.sends {
		if s.port == port {
			return s.to, true
		}
	}
	return permit{}, false
}

// The caller holds mu.
func (f *flow) socketFor(d *outgoing) *flowSocket {
	for _, s := range f.sends {
		if s.port == d.port && s.ttl == d.ttl && s.df == d.df {
			return s
		}
	}
	return nil
}

// now sends a datagram; false: the flow has no socket for it, or the socket has no room. After another error it
// counts or reports that and returns true. The caller holds mu.
func (f *flow) now(d *outgoing) bool {
	s := f.socketFor(d)
	if s == nil {
		return false
	}
	err := s.write(d.data)
	if err == unix.EAGAIN {
		return false
	}
	f.sent(s, d, err)
	return true
}

func (f *flow) sent(s *flowSocket, d *outgoing, err error) {
	switch {
	case err == nil || f.ctx.Err() != nil:
	case err == unix.EAGAIN || err == unix.ENOBUFS:
		f.gateway.count.udpLost.Add(1)
	default:
		mtu := 0
		if err == unix.EMSGSIZE {
			mtu = s.pathMTU(f.key.server.Is6())
		}
		f.failed(err, mtu, d)
	}
}

func (f *flow) later(d *outgoing) {
	g := f.gateway
	f.mu.Lock()
	s := f.socketFor(d)
	f.mu.Unlock()
	if s == nil {
		var err error
		if s, err = f.open(d); err != nil {
			if f.ctx.Err() == nil {
				g.count.unreached.Add(1)
				f.failed(err, 0, d)
			}
			f.endIfIdle()
			return
		}
	}
	f.sent(s, d, s.writeWaiting(f.ctx, d.data))
}

func (f *flow) endIfIdle() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.sends) == 0 && len(f.waiting) == 0 {
		f.end()
	}
}

func (f *flow) heard(ctx context.Context, s *flowSocket, from netip.AddrPort, b []byte) {
	f.touch()
	f.answered.Add(1)
	switch {
	case f.key.proto != splitter.ProtoUDP:
		f.answerEcho(ctx, b)
	case s.to.to.Port() != 0:
		f.gateway.sendDatagram(ctx, f.back, s.port, f.key.guest.Port(), b)
	case from.Addr().Unmap() == f.host.WithZone(""):
		f.gateway.sendDatagram(ctx, f.back, from.Port(), f.key.guest.Port(), b)
	}
}

// open opens the socket for a datagram and, for a UDP flow without flow.hears, also that one.
func (f *flow) open(d *outgoing) (*flowSocket, error) {
	bufs := f.buffer(f.entry, &f.sends) // before opens.take, because it may wait for a socket's reader
	if err := f.gateway.opens.take(f.ctx, f.entry.owner); err != nil {
		bufs.free()
		return nil, err
	}
	defer f.gateway.opens.give()
	f.mu.Lock()
	local := uint16(0)
	if f.hears != nil {
		local = f.hears.local
	}
	f.mu.Unlock()
	s, err := f.socket(Flow{Proto: f.key.proto, To: d.to.to, Local: local, TTL: d.ttl, DF: d.df}, d, bufs)
	if err != nil {
		return nil, err
	}
	var hears *flowSocket
	if f.key.proto == splitter.ProtoUDP && local == 0 {
		all := Flow{Proto: f.key.proto, To: netip.AddrPortFrom(d.to.to.Addr(), 0), Local: s.local}
		bufs := f.gateway.sockets.take(f.entry.owner, f.entry.nth, 1)
		if hears, err = f.socket(all, &outgoing{}, bufs); err != nil {
			s.drop()
			return nil, err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.shutDown {
		s.drop()
		hears.drop()
		return nil, context.Canceled
	}
	f.sends = append(f.sends, s)
	s.start(f.ctx, f.gateway, f)
	if hears != nil {
		f.hears = hears
		hears.start(f.ctx, f.gateway, f)
	}
	return s, nil
}
