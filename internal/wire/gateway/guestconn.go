package gateway

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"

	"vnic.dev/vnic/internal/ether"
)

// Timeouts of a silent guest: long, because a debugger may have stopped it.
const (
	keepIdle     = tcpip.KeepaliveIdleOption(5 * time.Minute)
	keepInterval = tcpip.KeepaliveIntervalOption(time.Minute)
	keepCount    = 5
	unackedTime  = tcpip.TCPUserTimeoutOption(10 * time.Minute)
)

type guestConn struct {
	*gonet.TCPConn
	ep   tcpip.Endpoint
	wq   *waiter.Queue
	gone chan struct{} // closed by reset
	end  sync.Once
}

func newGuestConn(wq *waiter.Queue, ep tcpip.Endpoint) *guestConn {
	o := ep.SocketOptions()
	o.SetDelayOption(false)
	o.SetKeepAlive(true)
	idle, interval, unacked := keepIdle, keepInterval, unackedTime
	_ = ep.SetSockOpt(&idle)
	_ = ep.SetSockOpt(&interval)
	_ = ep.SetSockOpt(&unacked)
	_ = ep.SetSockOptInt(tcpip.KeepaliveCountOption, keepCount)
	return &guestConn{TCPConn: gonet.NewTCPConn(wq, ep), ep: ep, wq: wq, gone: make(chan struct{})}
}

// reset resets the connection, and ends calls that wait in it.
func (c *guestConn) reset() {
	c.end.Do(func() { close(c.gone) })
	_ = c.SetDeadline(time.Now()) // wakes readers and writers
	c.ep.Abort()
}

func (g *Gateway) dialGuest(ctx context.Context, to netip.AddrPort) (*guestConn, error) {
	wq := new(waiter.Queue)
	ep, err := g.ns.NewEndpoint(tcp.ProtocolNumber, ether.Protocol(to.Addr()), wq)
	if err != nil {
		return nil, fmt.Errorf("netstack: %s", err)
	}
	done := make(chan struct{}, 1)
	entry := waiter.NewFunctionEntry(waiter.WritableEvents|waiter.EventErr|waiter.EventHUp,
		func(waiter.EventMask) { ether.Signal(done) })
	wq.EventRegister(&entry)
	defer wq.EventUnregister(&entry)
	err = ep.Connect(fullAddress(to))
	if _, started := err.(*tcpip.ErrConnectStarted); started {
		select {
		case <-done:
			err = ep.LastError()
		case <-ctx.Done():
			ep.Abort()
			return nil, ctx.Err()
		}
	}
	if err == nil && tcp.EndpointState(ep.State()) != tcp.StateEstablished {
		if err = ep.LastError(); err == nil && ep.Readiness(waiter.EventHUp) != 0 {
			err = &tcpip.ErrConnectionAborted{}
		}
	}
	if err != nil {
		ep.Abort()
		return nil, fmt.Errorf("connect to %v: %s", to, err)
	}
	return newGuestConn(wq, ep), nil
}

type hostConn struct{ *net.TCPConn }

func (c hostConn) reset() {
	_ = c.SetLinger(0)
	c.Close()
}
