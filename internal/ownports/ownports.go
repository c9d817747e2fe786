// Package ownports has a list of TCP and UDP ports of this machine at which this program, or a QEMU that it runs,
// listens or is going to listen, as far as they were passed to Add or Listener.
package ownports

import (
	"net"
	"sync"
)

var (
	mu    sync.Mutex
	ports = map[uint16]int{}
)

// Add lists a port until remove is called. A port that was added several times stays listed until each remove was
// called.
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

// Has reports whether a port is listed.
func Has(port uint16) bool {
	mu.Lock()
	defer mu.Unlock()
	return ports[port] > 0
}

// Listener lists the port of a TCP listener until the returned listener is closed. It returns another kind of listener
// as it is.
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
