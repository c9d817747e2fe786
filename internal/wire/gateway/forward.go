package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"

	"vnic.dev/vnic/internal/limits"
)

func (g *Gateway) startForwards() error {
	for i := range g.o.Forwards {
		f := &g.o.Forwards[i]
		listen := g.listenUDP
		if f.Proto == "tcp" {
			listen = g.listenTCP
		}
		if err := listen(f); err != nil {
			return fmt.Errorf("forward %s %v to %v: %w", f.Proto, f.Listen, f.To, err)
		}
	}
	return nil
}

// Forwards returns the forwards, with the ports that they listen on.
func (g *Gateway) Forwards() []Forward { return slices.Clone(g.o.Forwards) }

// closes starts a goroutine that closes c when the gateway is closed. Gateway.Close waits for it; it would not wait for
// a function of context.AfterFunc.
func (g *Gateway) closes(c io.Closer) {
	g.serve(func() {
		<-g.ctx.Done()
		_ = c.Close()
	})
}

// listenTCP starts a forward of TCP, and sets the port in f.Listen.
func (g *Gateway) listenTCP(f *Forward) error {
	l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(f.Listen))
	if err != nil {
		return err
	}
	f.Listen = netip.AddrPortFrom(f.Listen.Addr(), l.Addr().(*net.TCPAddr).AddrPort().Port())
	to := f.To
	g.closes(l)
	g.serve(func() {
		for {
			c, err := l.AcceptTCP()
			if err != nil { // l is closed, or descriptors are used up, or the like
				if errors.Is(err, net.ErrClosed) || !g.pause() {
					return
				}
				continue
			}
			host, o := hostConn{c}, g.ownerOf(to.Addr())
			ctx, end := context.WithCancel(g.ctx)
			entry := g.takeTCP(o, end)
			if entry == nil {
				end()
				host.reset()
			} else if !g.serve(func() {
				defer end()
				defer entry.give()
				g.fromHost(ctx, host, to, entry)
			}) {
				end()
				entry.give()
				host.reset()
			}
		}
	})
	return nil
}

func (g *Gateway) fromHost(ctx context.Context, host hostConn, to netip.AddrPort, entry *entry) {
	dial, cancel := context.WithTimeout(ctx, limits.Dial.Here())
	defer cancel()
	guest, err := g.dialGuest(dial, to)
	if err != nil {
		g.count.unreached.Add(1)
		host.reset()
		return
	}
	g.count.tcpFlows.Add(1)
	bufs := g.buffers.take(entry.owner, entry.nth, 2)
	bufs.set(guest.ep)
	splice(ctx, guest, host)
	g.unfinished.add(entry.owner, guest.ep, bufs)
}
