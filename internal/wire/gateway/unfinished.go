package gateway

import (
	"slices"
	"sync"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
)

// maxUnfinished is the number of unfinished connections from which on a new connection needs the place of one of them.
const maxUnfinished = maxTCP

// unfinished are the guests' ends of connections that the gateway has closed and netstack has not finished.
type unfinished struct {
	mu     sync.Mutex
	shares shares[ended]
}

type ended struct {
	ep   tcpip.Endpoint
	bufs *buffers // for the data that netstack still has to send
}

func (u *unfinished) add(o owner, ep tcpip.Endpoint, bufs *buffers) {
	bufs.received()
	u.mu.Lock()
	defer u.mu.Unlock()
	if !kept(ep) {
		bufs.free()
		return
	}
	u.shares.add(o, ended{ep, bufs})
}

// room reports whether an owner may have another connection. When the table is full, it aborts an entry to make room:
// the oldest one of the owner that has to give up an entry (giver), else o's own oldest one in TIME-WAIT. If there is
// neither, it returns false.
func (u *unfinished) room(o owner) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.sweep(); u.shares.n < u.shares.all {
		return true
	}
	if from, ok := u.shares.giver(o); ok {
		u.abort(from, 0)
		return true
	}
	i := slices.IndexFunc(u.shares.by[o], func(e ended) bool {
		return tcp.EndpointState(e.ep.State()) == tcp.StateTimeWait
	})
	if i < 0 {
		return false
	}
	u.abort(o, i)
	return true
}

// abort removes entry i of an owner, and resets its connection. The caller holds mu.
func (u *unfinished) abort(o owner, i int) {
	e := u.shares.remove(o, i)
	e.ep.Abort()
	e.bufs.free()
}

func (u *unfinished) endOf(o owner) {
	u.mu.Lock()
	list := u.shares.clear(o)
	u.mu.Unlock()
	for _, e := range list {
		e.ep.Abort()
		e.bufs.free()
	}
}

// sweep removes the connections that netstack has finished. The caller holds mu.
func (u *unfinished) sweep() {
	for o, list := range u.shares.by {
		for i := len(list) - 1; i >= 0; i-- {
			if !kept(list[i].ep) {
				u.shares.remove(o, i).bufs.free()
			}
		}
	}
}

func kept(ep tcpip.Endpoint) bool {
	s := tcp.EndpointState(ep.State())
	return s != tcp.StateClose && s != tcp.StateError
}
