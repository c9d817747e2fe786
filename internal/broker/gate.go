package broker

import (
	"context"
	"errors"
	"net"
	"sync"
	"syscall"
)

// Gate makes the goroutines that start this process's QEMUs wait (Pass) until every QEMU has started and the function
// that confines the process has returned: this process maps no guest's memory before.
type Gate struct {
	broker  *Client
	confine func() error
	open    chan struct{} // closed when confine has returned
	err     error         // result of confine; set before open is closed

	mu   sync.Mutex
	left int // under mu; QEMUs that the broker does not have so far, with their monitors
}

// NewGate makes a Gate for n QEMUs. When all have started, the last call of [Gate.Pass] calls confine.
func NewGate(k *Client, n int, confine func() error) *Gate {
	return &Gate{broker: k, confine: confine, open: make(chan struct{}), left: n}
}

// Pass is a qemu.Started, called once for each QEMU. It names the QEMU to the broker ([Client.Own], [Client.Monitor]),
// closes monitor, and waits until the calls for all QEMUs have come as far and confine has returned, or ctx ends. If
// Own or Monitor fails, Pass returns the error, and leaves monitor open. If confine fails, each waiting call returns
// its error.
func (g *Gate) Pass(ctx context.Context, pid int, monitor net.Conn) (signal func(syscall.Signal) error,
	instead net.Conn, err error) {
	if signal, err = g.broker.Own(pid); err != nil {
		return nil, nil, err
	}
	if instead, err = g.broker.Monitor(monitor); err != nil {
		return signal, nil, err
	}
	_ = monitor.Close() // this process reaches the monitor only through the broker
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
