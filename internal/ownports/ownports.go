// Package ownports knows the TCP ports of this machine at which this program listens, or a QEMU of its own, for those
// who run it: the page, metrics, gdb, uplinks. No guest has business there.
package ownports

import (
	"net"
	"sync"
)

var (
	mu    sync.Mutex
	ports = map[uint16]int{}
)

// Add notes a port, until remove is called, once.
func Add(port uint16) (remove func()) {
	mu.Lock()
	defer mu.Unlock()
	ports[port]++
	return sync.OnceFunc(func() {
		mu.Lock()
		defer mu.Unlock()
		if ports[port]--; ports[port] == 0 {
			delete(ports, port)
		}
	})
}

// Has says whether a port is one.
func Has(port uint16) bool {
	mu.Lock()
	defer mu.Unlock()
	return ports[port] > 0
}

// Listener is a listener whose port is noted until it is closed. One that is not of TCP stays as it is.
func Listener(l net.Listener) net.Listener {
	a, ok := l.Addr().(*net.TCPAddr)
	if !ok {
		return l
	}
	return &listener{Listener: l, remove: Add(uint16(a.Port))}
}

type listener struct {
	net.Listener
	remove func()
}

// Close implements net.Listener.
func (l *listener) Close() error {
	l.remove()
	return l.Listener.Close()
}
