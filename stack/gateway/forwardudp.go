package gateway

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"
)

// udpForward is a socket of the host whose datagrams go to a guest; each sender's is a flow of its own.
type udpForward struct {
	g    *Gateway
	host Datagrams
	to   netip.AddrPort

	mu    sync.Mutex
	flows map[netip.AddrPort]*outerFlow
}

// outerFlow is the host's end of such a flow, as a net.Conn that relay can use.
type outerFlow struct {
	*udpConn
	state udpFlow
}

func (g *Gateway) listenUDP(f *Forward) error {
	c, err := g.listenHost(f.Listen)
	if err != nil {
		return err
	}
	f.Listen = netip.AddrPortFrom(f.Listen.Addr(), c.LocalAddr().(*net.UDPAddr).AddrPort().Port())
	u := &udpForward{g: g, host: c, to: f.To, flows: map[netip.AddrPort]*outerFlow{}}
	g.closes(c)
	g.serve(u.run)
	return nil
}

// run brings the host's datagrams to the guest.
func (u *udpForward) run() {
	buf := make([]byte, maxUDPSize)
	for {
		n, from, err := u.host.ReadFromUDPAddrPort(buf)
		if err != nil {
			if errors.Is(err, net.ErrClosed) || !u.g.pause() {
				return
			}
			continue
		}
		if f := u.flow(from); f != nil {
			f.state.touch()
			_, _ = f.Write(buf[:n])
		}
	}
}

// flow finds the flow of a sender, or begins it; nil if there are too many.
func (u *udpForward) flow(from netip.AddrPort) *outerFlow {
	u.mu.Lock()
	defer u.mu.Unlock()
	if f := u.flows[from]; f != nil {
		return f
	}
	o := u.g.ownerOf(u.to.Addr())
	if !u.g.udp.take(o) {
		return nil
	}
	c := u.g.dialUDP(u.to)
	if c == nil || !u.g.begin() {
		if c != nil {
			c.Close()
		}
		u.g.count.unreached.Add(1)
		u.g.udp.give(o)
		return nil
	}
	f := &outerFlow{udpConn: c, state: udpFlow{g: u.g}}
	f.state.touch()
	u.flows[from] = f
	u.g.count.udpFlows.Add(1)
	go func() {
		defer u.g.end()
		defer u.g.udp.give(o)
		u.back(f, from)
	}()
	return f
}

// back brings the guest's answers to the sender, until the flow ends.
func (u *udpForward) back(f *outerFlow, from netip.AddrPort) {
	stop := context.AfterFunc(u.g.ctx, func() { _ = f.SetReadDeadline(time.Now()) })
	defer stop()
	f.state.pour(answerTo{u.host, from}, f.udpConn)
	u.mu.Lock()
	delete(u.flows, from)
	u.mu.Unlock()
	f.Close()
}

// answerTo writes to one of the senders of a socket.
type answerTo struct {
	c  Datagrams
	to netip.AddrPort
}

func (a answerTo) Write(b []byte) (int, error) { return a.c.WriteToUDPAddrPort(b, a.to) }
