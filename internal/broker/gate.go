package broker

import (
	"context"
	"errors"
	"net"
	"sync"
	"syscall"
)

// Gate holds back the QEMUs of this process until all of them have started and the process is confined: so it starts
// all of them before it is confined, and maps no memory of theirs until then.
type Gate struct {
	broker  *Client
	confine func() error
	open    chan struct{} // closed when confine has been called
	err     error         // confine's; set before open is closed

	mu   sync.Mutex
	left int // QEMUs that have not started yet
}

// NewGate makes a Gate for n QEMUs. confine is called once, when all have started.
func NewGate(k *Client, n int, confine func() error) *Gate {
	return &Gate{broker: k, confine: confine, open: make(chan struct{}), left: n}
}

// Pass is called by the starter of each QEMU once that has started: it is a qemu.Started. It returns when it has been
// called for all QEMUs and the process is confined, or when ctx ends.
func (g *Gate) Pass(ctx context.Context, pid int, monitor net.Conn) (signal func(syscall.Signal) error,
	instead net.Conn, err error) {
	if signal, err = g.broker.Own(pid); err != nil {
		return nil, nil, err
	}
	if instead, err = g.broker.Monitor(monitor); err != nil {
		return signal, nil, err
	}
	_ = monitor.Close() // so that this process reaches the monitor by the broker alone
	g.mu.Lock()
	g.left--
	last := g.left == 0
	g.mu.Unlock()
	if last {
		g.err = g.confine()
		close(g.open)
	}
	select {
	case <-g.open:
		err = g.err
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		return signal, nil, errors.Join(err, instead.Close())
	}
	return signal, instead, nil
}
