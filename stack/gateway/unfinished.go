package gateway

import (
	"slices"
	"sync"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
)

// maxUnfinished is how many connections may be closed without the guest having confirmed it, for up to unackedTime.
// Netstack keeps them, without an owner.
const maxUnfinished = maxTCP

// unfinished are the guests' ends of connections that the gateway has let go of.
type unfinished struct {
	mu     sync.Mutex
	shares shares[tcpip.Endpoint]
}

// add notes an end that is closed.
func (u *unfinished) add(o owner, ep tcpip.Endpoint) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if kept(ep) {
		u.shares.add(o, ep)
	}
}

// room says whether an owner may have another connection. Too many that only wait for what is left in the network to go
// by (TIME-WAIT) keep nobody from one: the oldest of its own goes. Nor do those of another owner that has more than its
// part: then its oldest goes.
func (u *unfinished) room(o owner) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.shares.n < u.shares.all {
		return true
	}
	if u.sweep(); u.shares.n < u.shares.all {
		return true
	}
	if from, ok := u.shares.giver(o); ok {
		u.shares.remove(from, 0).Abort()
		return true
	}
	i := slices.IndexFunc(u.shares.by[o], func(ep tcpip.Endpoint) bool {
		return tcp.EndpointState(ep.State()) == tcp.StateTimeWait
	})
	if i < 0 {
		return false
	}
	u.shares.remove(o, i).Abort()
	return true
}

// endOf ends all that an owner has.
func (u *unfinished) endOf(o owner) {
	u.mu.Lock()
	list := u.shares.clear(o)
	u.mu.Unlock()
	for _, ep := range list {
		ep.Abort()
	}
}

// sweep forgets the ends that netstack does not keep any more. Under mu.
func (u *unfinished) sweep() {
	for o, list := range u.shares.by {
		for i := len(list) - 1; i >= 0; i-- {
			if !kept(list[i]) {
				u.shares.remove(o, i)
			}
		}
	}
}

// kept says whether netstack still has a connection.
func kept(ep tcpip.Endpoint) bool {
	s := tcp.EndpointState(ep.State())
	return s != tcp.StateClose && s != tcp.StateError
}
