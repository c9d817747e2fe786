package gateway

import (
	"slices"
	"sync"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
)

// maxUnfinished is how many connections of one owner may be closed without the guest having
// confirmed it, for up to unackedTime. Netstack keeps them, without an owner.
const maxUnfinished = maxTCP / 2

// unfinished are the guests' ends of connections that the gateway has let go of.
type unfinished struct {
	max int

	mu sync.Mutex
	by map[owner][]tcpip.Endpoint // oldest first; no empty ones
}

// add notes an end that is closed.
func (u *unfinished) add(o owner, ep tcpip.Endpoint) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.sweep(o)
	if kept(ep) {
		u.by[o] = append(u.by[o], ep)
	}
}

// room says whether an owner may have another connection. Too many that only wait for what is left
// in the network to go by (TIME-WAIT) keep nobody from one: the oldest of them goes.
func (u *unfinished) room(o owner) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.sweep(o)
	list := u.by[o]
	if len(list) < u.max {
		return true
	}
	i := slices.IndexFunc(list, func(ep tcpip.Endpoint) bool {
		return tcp.EndpointState(ep.State()) == tcp.StateTimeWait
	})
	if i < 0 {
		return false
	}
	list[i].Abort()
	u.sweep(o)
	return true
}

// sweep forgets the ends that netstack does not keep any more. Under mu.
func (u *unfinished) sweep(o owner) {
	list := slices.DeleteFunc(u.by[o], func(ep tcpip.Endpoint) bool { return !kept(ep) })
	if u.by[o] = list; len(list) == 0 {
		delete(u.by, o)
	}
}

// kept says whether netstack still has a connection.
func kept(ep tcpip.Endpoint) bool {
	s := tcp.EndpointState(ep.State())
	return s != tcp.StateClose && s != tcp.StateError
}
