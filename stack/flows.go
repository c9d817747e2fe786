package stack

import (
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"vnic.dev/vnic/internal/ether"
	"vnic.dev/vnic/splitter"
)

const (
	sweepEvery = time.Second
	maxUnowned = 16384 // limit of flows without a Conn
	maxAge     = 10    // the sweep that removes a flow without endpoint and data; before, the ACK of a SYN cookie may come
	maxKeep    = 3     // sweeps that such a flow survives with pending payload
)

type flows struct {
	s *Stack

	mu      sync.RWMutex
	m       map[splitter.Flow]*flow
	unowned int // number of flows without a Conn at the last sweep, plus new flows since

	kick chan struct{}
}

func (fs *flows) get(k *splitter.Flow) *flow {
	fs.mu.RLock()
	f := fs.m[*k]
	fs.mu.RUnlock()
	return f
}

// outgoing returns the flow of an outgoing segment; nil: none. The SYN of a new connection creates it, unless unowned
// has reached maxUnowned.
func (fs *flows) outgoing(k splitter.Flow, t header.TCP) *flow {
	old := fs.get(&k)
	if !t.Flags().Contains(header.TCPFlagSyn) || old != nil && old.syn(t) {
		return old
	}
	f := &flow{key: k, last: -1, scale: [2]int8{-1, -1}}
	f.syn(t)
	fs.mu.Lock()
	if fs.unowned >= maxUnowned {
		fs.mu.Unlock()
		fs.sweepSoon()
		return nil // netstack continues the handshake, but newConn refuses a connection without a flow
	}
	fs.m[k] = f
	fs.unowned++
	fs.mu.Unlock()
	if old != nil {
		fs.forget(old)
	}
	fs.sweepSoon()
	return f
}

func (fs *flows) forget(f *flow) {
	f.end()
	releaseAll(f.stop(nil)) // stop does nothing if f has a Conn, whose application may still read
}

// claim assigns the flow with key k to a Conn, and returns it. It returns nil without a flow, or if the flow has or had
// a Conn or was forgotten.
func (fs *flows) claim(k splitter.Flow, c *Conn) *flow {
	f := fs.get(&k)
	if f == nil {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.conn != nil || f.rxShutdown {
		return nil
	}
	f.conn = c
	return f
}

func (fs *flows) sweepSoon() { ether.Signal(fs.kick) }

// sweeper calls sweep sweepEvery after a call of sweepSoon, and then every sweepEvery while flows without a Conn are
// left, until stop is closed. It has to look, because netstack does not report the end of each endpoint.
func (fs *flows) sweeper(stop <-chan struct{}) {
	var tick <-chan time.Time
	for {
		select {
		case <-stop:
			return
		case <-fs.kick:
			if tick == nil {
				tick = time.After(sweepEvery)
			}
		case <-tick:
			tick = nil
			if fs.sweep() > 0 {
				tick = time.After(sweepEvery)
			}
		}
	}
}

// sweep removes flows without a Conn that are not alive, and returns how many flows without a Conn are left.
func (fs *flows) sweep() int {
	fs.mu.RLock()
	var look []*flow
	for _, f := range fs.m {
		f.mu.Lock()
		if f.conn == nil {
			look = append(look, f)
		}
		f.mu.Unlock()
	}
	fs.mu.RUnlock()
	left := 0
	for _, f := range look {
		if fs.alive(f) {
			left++
			continue
		}
		fs.mu.Lock()
		if fs.m[f.key] == f {
			delete(fs.m, f.key)
		}
		fs.mu.Unlock()
		fs.forget(f)
	}
	fs.mu.Lock()
	fs.unowned = left
	fs.mu.Unlock()
	return left
}

// alive reports whether netstack may still receive or send for a flow: it has an endpoint for it, or may get one within
// maxAge sweeps.
func (fs *flows) alive(f *flow) bool {
	proto := header.IPv4ProtocolNumber
	local, remote := tcpip.AddrFrom4Slice(f.key.Dst[:4]), tcpip.AddrFrom4Slice(f.key.Src[:4])
	if f.key.IPv6 {
		proto = header.IPv6ProtocolNumber
		local, remote = tcpip.AddrFrom16(f.key.Dst), tcpip.AddrFrom16(f.key.Src)
	}
	id := stack.TransportEndpointID{
		LocalPort: f.key.DstPort, LocalAddress: local, RemotePort: f.key.SrcPort, RemoteAddress: remote,
	}
	ep, ok := fs.s.ns.FindTransportEndpoint(proto, tcp.ProtocolNumber, id, ether.NIC).(tcpip.Endpoint)
	f.mu.Lock()
	defer f.mu.Unlock()
	if ok {
		switch tcp.EndpointState(ep.State()) {
		case tcp.StateListen: // the ACK of a SYN cookie may still come
		case tcp.StateClose, tcp.StateError:
			return false
		default:
			f.age = 0
			return true
		}
	}
	f.age++
	if f.pending.len() > 0 && f.age > maxKeep {
		return false
	}
	return f.nxt == 0 && f.acked == 0 && !f.ended && f.conn == nil && !f.rxShutdown && f.age < maxAge
}
