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
	maxUnowned = 16384 // flows without a Conn
	maxAge     = 10    // the sweep that removes a flow with no endpoint and no data: a SYN cookie's answer may come before
	maxKeep    = 3     // sweeps that such a flow survives with pending payload
)

type flows struct {
	s *Stack

	mu      sync.RWMutex
	m       map[splitter.Flow]*flow
	unowned int // without a Conn, at the last sweep, plus new flows since

	kick chan struct{}
}

func (fs *flows) get(k *splitter.Flow) *flow {
	fs.mu.RLock()
	f := fs.m[*k]
	fs.mu.RUnlock()
	return f
}

// outgoing returns the flow of an outgoing segment; nil: none. A SYN creates it, unless there are maxUnowned.
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
		return nil // netstack continues the handshake, but newConn refuses the connection
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
	releaseAll(f.stop(nil)) // does nothing if f has a Conn, whose application may still read
}

// claim assigns a flow to a Conn, unless the flow has or had one.
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

// sweeper exists because netstack does not report the end of each endpoint.
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

// sweep returns how many flows without a Conn are left.
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

// alive reports whether netstack may still receive or send for a flow.
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
		case tcp.StateListen: // the answer to a SYN cookie may still come
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
