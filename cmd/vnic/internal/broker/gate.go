package broker

import (
	"context"
	"errors"
	"net"
	"sync"
	"syscall"
)

// Gate holds QEMUs of this process back, until the last of them is there and the process is confined:
// it starts all of them while it may, and maps nothing of any before it may not.
type Gate struct {
	broker  *Client
	confine func() error
	open    chan struct{} // closed when confine has been called
	err     error         // confine's; set before open is closed

	mu   sync.Mutex
	left int // that are not there yet
}

// NewGate is for n processes. confine is called once, when all are there.
func NewGate(k *Client, n int, confine func() error) *Gate {
	return &Gate{broker: k, confine: confine, open: make(chan struct{}), left: n}
}

// Pass is what the starter of each process calls when it has started it: a qemu.Started. It returns
// when all others have called it, too, or ctx ends.
func (g *Gate) Pass(ctx context.Context, pid int, monitor net.Conn) (signal func(syscall.Signal) error,
	instead net.Conn, err error) {
	if signal, err = g.broker.Own(pid); err != nil {
		return nil, nil, err
	}
	if instead, err = g.broker.Monitor(monitor); err != nil {
		return signal, nil, err
	}
	_ = monitor.Close() // this process has no way to it any more
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
