package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sync/errgroup"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/driver"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/wire/gateway"
	"vnic.dev/vnic/stack"
)

const (
	chunkLen  = 256 << 10
	gpuQueue  = 1       // receive queue with GPU memory
	poolHot   = 8 << 20 // bytes of pages: twice what a receive ring takes, so that it is full while others are in use
	sourceHot = 1 << 20
)

// footprint has the sizes, in bytes, of the GPU memory that payload is sent from (source) and received in (pool).
type footprint struct{ source, pool int }

var (
	hot  = footprint{sourceHot, poolHot}
	cold = footprint{coldLen, coldLen}
)

// open makes a lab of two guests, each with a GPU whose memory is as large as the larger of source and pool.
func (f footprint) open(mtu int, log *slog.Logger) (*lab.Lab, error) {
	return lab.Open(lab.Uniform(2, lab.NIC{Model: lab.Virtio, QueuePairs: gpuQueue + 1,
		NICOptions: lab.NICOptions{MTU: mtu}},
		uint64(max(f.source, f.pool))), lab.Options{Log: log})
}

// betweenGPUs measures payload from one guest's GPU to another's: the function connect sets r.ours. The yardstick
// copies from a memory file of the footprint's size source to one of its size pool.
func (f footprint) betweenGPUs(mtu int, connect func(context.Context, *lab.Lab, *rig) error) openFunc {
	return func(ctx context.Context, log *slog.Logger, r *rig) error {
		l, err := f.open(mtu, log)
		if err != nil {
			return err
		}
		r.undo.Add(l.Close)
		if err := connect(ctx, l, r); err != nil {
			return err
		}
		m, err := newMemory(f.source, f.pool)
		if err != nil {
			return err
		}
		r.undo.Add(m.close)
		r.yardstick = m.copier(pieceLen)
		return nil
	}
}

func newStack(p *lab.Port, o stack.Options) (*stack.Stack, error) {
	n, err := p.InProcess(driver.Options{QueuePairs: p.QueuePairs})
	if err != nil {
		return nil, err
	}
	o.Addresses = []netip.Prefix{p.Addr4}
	s, err := stack.New(n, n.Control(), o)
	if err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return s, nil
}

func counters(p *lab.Port) control.PortCounters {
	c, _ := p.NIC().PortCounters()
	return c
}

// transfer returns a run that calls send again and again, at least once and for about the time d. Concurrently it calls
// receive, once for each call of send, until receive fails. Each call moves chunkLen bytes.
func transfer(send func() error, receive func(n int) error) runFunc {
	return func(ctx context.Context, d time.Duration) (w work, err error) {
		start := time.Now()
		due := make(chan struct{}, 1<<10) // an element for each call of send for which receive has not been called
		var g errgroup.Group
		g.Go(func() error {
			defer close(due)
			for first := true; first || time.Since(start) < d && ctx.Err() == nil; first = false {
				due <- struct{}{}
				if err := send(); err != nil {
					return fmt.Errorf("sending: %w", err)
				}
			}
			return nil
		})
		for range due {
			if err != nil {
				continue // drain due until the sender ends
			}
			if err = receive(chunkLen); err != nil {
				err = fmt.Errorf("receiving: %w", err)
				continue
			}
			w.frames++
		}
		w.spent = time.Since(start)
		w.bytes = w.frames * chunkLen
		return w, errors.Join(err, g.Wait(), ctx.Err())
	}
}

// gpuTCP measures a TCP connection between the GPUs of two guests in this process.
func gpuTCP(f footprint, mtu int, gso bool) openFunc {
	return f.betweenGPUs(mtu, func(ctx context.Context, l *lab.Lab, r *rig) error {
		return f.connectStacks(ctx, l, stack.Options{NoGSO: !gso}, r)
	})
}

// connectStacks connects two guests' stacks, and sets r.ours to a run that sends from the first guest's GPU to the
// second's.
func (f footprint) connectStacks(ctx context.Context, l *lab.Lab, o stack.Options, r *rig) error {
	var stacks [2]*stack.Stack
	for i, p := range l.Ports() {
		s, err := newStack(p, o)
		if err != nil {
			return err
		}
		r.undo.Add(s.Close)
		stacks[i] = s
	}
	a, b := stacks[0], stacks[1]
	addr := netip.AddrPortFrom(l.Port(1).Addr4.Addr(), tcpPort)
	source, err := a.Register(l.Port(0).GPU().ID(), 0, uint64(f.source))
	if err != nil {
		return err
	}
	tx, err := a.BindTX(source)
	if err != nil {
		return err
	}
	pool, err := b.Register(l.Port(1).GPU().ID(), 0, uint64(f.pool))
	if err != nil {
		return err
	}
	if _, err = b.BindRX(pool, gpuQueue); err != nil {
		return err
	}
	if _, err = b.AddFlow(devmem.Flow{Dst: addr, Queue: gpuQueue}); err != nil {
		return err
	}
	from, to, err := connect(ctx, a, b, addr)
	if err != nil {
		return err
	}
	off := 0
	send := func() error {
		n, err := from.SendDevmem(tx.ID(), []devmem.Range{{Off: uint64(off), Len: chunkLen}})
		if err == nil && n != chunkLen {
			err = io.ErrShortWrite
		}
		off = (off + chunkLen) % f.source
		return err
	}
	frags, linear := make([]devmem.Frag, 256), make([]byte, chunkLen)
	var tokens devmem.Tokens
	receive := func(n int) error {
		for n > 0 {
			k, nf, _, err := to.RecvDevmem(frags, linear[:n], 0)
			if err != nil {
				return err
			}
			n -= k
			for _, f := range frags[:nf] {
				if f.Kind == devmem.Dmabuf {
					tokens.Add(f.Token)
				}
			}
			if err := tokens.GiveBack(to); err != nil {
				return err
			}
		}
		return nil
	}
	r.ours, r.atLeast = transfer(send, receive), true
	r.counted = func() uint64 { return counters(l.Port(1)).Rx.DeviceBytes }
	return nil
}

func connect(ctx context.Context, a, b *stack.Stack, addr netip.AddrPort) (from, to devmem.Conn, err error) {
	ctx, cancel := context.WithTimeout(ctx, limits.Bench.Here())
	defer cancel()
	l, err := b.Listen(addr)
	if err != nil {
		return nil, nil, err
	}
	var g errgroup.Group
	g.Go(func() (err error) { to, err = l.AcceptConn(); return err })
	from, err = a.Dial(ctx, netip.AddrPort{}, addr)
	if err != nil {
		return nil, nil, errors.Join(err, l.Close(), ignore(g.Wait()))
	}
	if err := errors.Join(g.Wait(), l.Close()); err != nil {
		return nil, nil, err
	}
	from.SetStallLimit(limits.Bench.Here())
	to.SetStallLimit(limits.Bench.Here())
	return from, to, nil
}

// ignore drops an error that follows from another one.
func ignore(error) error { return nil }

// toHost measures a connection through the gateway between a guest's stack and a socket of this machine, in the
// direction from the guest if out is set. The yardstick is the connection that the function connect makes.
func toHost(out bool, connect func(ctx context.Context, host *net.TCPListener, r *rig) (*ends, error)) openFunc {
	return func(ctx context.Context, log *slog.Logger, r *rig) error {
		host, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
		if err != nil {
			return err
		}
		r.undo.Add(host.Close)
		l, err := lab.Open(lab.Uniform(1, lab.NIC{Model: lab.Virtio}, 0), lab.Options{Log: log, Services: []lab.Service{
			lab.Gateway(gateway.Options{NAT: true, Policy: gateway.Policy{HostPorts: gateway.AllPorts}})}})
		if err != nil {
			return err
		}
		r.undo.Add(l.Close)
		s, err := newStack(l.Port(0), stack.Options{})
		if err != nil {
			return err
		}
		r.undo.Add(s.Close)
		v4, _ := lab.GatewayAddrs()
		ours, err := meet(ctx, host, dialFrom(s, v4.Addr(), host), r)
		if err != nil {
			return err
		}
		theirs, err := connect(ctx, host, r)
		if err != nil {
			return err
		}
		r.ours, r.yardstick, r.atLeast = ours.stream(out), theirs.stream(out), true
		r.counted = func() uint64 {
			if out {
				return counters(l.Port(0)).Tx.HostBytes
			}
			return counters(l.Port(0)).Rx.HostBytes
		}
		return nil
	}
}

type ends struct{ near, far net.Conn }

func overLoopback(ctx context.Context, host *net.TCPListener, r *rig) (*ends, error) {
	return meet(ctx, host, func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp4", host.Addr().String())
	}, r)
}

// dialFrom returns a function that connects a guest's stack s to the address addr and host's port.
func dialFrom(s *stack.Stack, addr netip.Addr, host *net.TCPListener) func(ctx context.Context) (net.Conn, error) {
	to := netip.AddrPortFrom(addr, host.Addr().(*net.TCPAddr).AddrPort().Port())
	return func(ctx context.Context) (net.Conn, error) { return s.Dial(ctx, netip.AddrPort{}, to) }
}

// meet connects to the listener l by the function dial, and accepts the connection. The rig r closes both ends.
func meet(ctx context.Context, l *net.TCPListener, dial func(context.Context) (net.Conn, error), r *rig,
) (e *ends, err error) {
	ctx, cancel := context.WithTimeout(ctx, limits.Bench.Here())
	defer cancel()
	if err := l.SetDeadline(time.Now().Add(limits.Bench.Here())); err != nil {
		return nil, err
	}
	e = new(ends)
	if e.near, err = dial(ctx); err != nil {
		return nil, err
	}
	r.undo.Add(e.near.Close)
	if e.far, err = l.Accept(); err != nil {
		return nil, err
	}
	r.undo.Add(e.far.Close)
	return e, nil
}

func (e *ends) stream(out bool) runFunc {
	from, to := e.near, e.far
	if !out {
		from, to = to, from
	}
	data, into := make([]byte, chunkLen), make([]byte, chunkLen)
	f := transfer(func() error { _, err := from.Write(data); return err },
		func(n int) error { _, err := io.ReadFull(to, into[:n]); return err })
	return func(ctx context.Context, d time.Duration) (work, error) {
		end := time.Now().Add(d + limits.Bench.Here())
		if err := errors.Join(from.SetDeadline(end), to.SetDeadline(end)); err != nil {
			return work{}, err
		}
		return f(ctx, d)
	}
}
