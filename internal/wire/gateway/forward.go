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

// startForwards opens the listening sockets of all forwards on the host.
func (g *Gateway) startForwards() error {
	for _, f := range g.o.Forwards {
		var err error
		if f.Proto == "tcp" {
			err = g.listenTCP(&f)
		} else {
			err = g.listenUDP(&f)
		}
		if err != nil {
			return fmt.Errorf("forward %s %v to %v: %w", f.Proto, f.Listen, f.To, err)
		}
		g.mu.Lock()
		g.forwards = append(g.forwards, f)
		g.mu.Unlock()
	}
	return nil
}

// Forwards returns the forwards, with the ports that they listen on.
func (g *Gateway) Forwards() []Forward {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.forwards)
}

// closes starts a goroutine that closes a socket when the gateway's context ends. It does not use
// context.AfterFunc, because Close would not wait for that.
func (g *Gateway) closes(c io.Closer) {
	g.serve(func() {
		<-g.ctx.Done()
		_ = c.Close()
	})
}

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
			if err != nil { // out of descriptors, or the like
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

// fromHost joins a connection of the host with a new one to a guest, until both have ended, or ctx
// ends.
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
