package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/driver"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/wire/gateway"
	"vnic.dev/vnic/stack"
)

const (
	chunkLen  = 256 << 10 // what a sender sends at a time
	gpuQueue  = 1         // the receive queue that is bound to GPU memory
	poolHot   = 8 << 20   // of pages: fewer do not fill a ring
	sourceHot = 1 << 20
)

// footprint is how much GPU memory payload is sent from, and how much receives it.
type footprint struct{ source, pool int }

var (
	hot  = footprint{sourceHot, poolHot}
	cold = footprint{coldLen, coldLen}
)

// open makes a lab of n guests with a GPU each that fits the footprint.
func (f footprint) open(n, mtu int, log *slog.Logger) (*lab.Lab, error) {
	return lab.Open(lab.Uniform(n, lab.NIC{Model: lab.Virtio, QueuePairs: gpuQueue + 1,
		NICOptions: lab.NICOptions{MTU: mtu}},
		uint64(max(f.source, f.pool))), lab.Options{Log: log})
}

// withCopy adds the yardstick: a copy of as much from memory of the same sizes.
func (f footprint) withCopy(r *rig) (*rig, error) {
	m, err := newMemory(f.source, f.pool)
	if err != nil {
		return nil, errors.Join(err, r.close())
	}
	ours := r.close
	r.yardstick, r.close = m.copier(pieceLen), func() error { return errors.Join(ours(), m.close()) }
	return r, nil
}

// newStack makes a driver and a stack on a port.
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

// arrived is how much payload the NIC has written: to GPU memory, or to host memory. What came twice counts twice.
func arrived(p *lab.Port, gpu bool) func() uint64 {
	return func() (n uint64) {
		for q := range p.QueuePairs {
			rx, _ := p.NIC().QueueCounters(q)
			if gpu {
				n += rx.DeviceBytes
			} else {
				n += rx.HostBytes
			}
		}
		return n
	}
}

// transfer sends chunks with one function and receives as many bytes with another, for a time.
func transfer(send func() error, receive func(n int) error) runFunc {
	return func(ctx context.Context, d time.Duration) (w work, err error) {
		start := time.Now()
		due := make(chan struct{}, 1<<10) // a chunk that is being sent
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
				continue // the sender ends by its deadline
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

// gpuTCP measures a connection from the GPU of one guest in this process to that of another: driver, stack, sockets.
func gpuTCP(name, about, yardstick string, f footprint, mtu int, gso bool) Measurement {
	return Measurement{Name: name, Unit: GBps, About: about, Yardstick: yardstick,
		open: func(ctx context.Context, log *slog.Logger) (*rig, error) {
			l, err := f.open(2, mtu, log)
			if err != nil {
				return nil, err
			}
			r, err := connectGPUs(ctx, l, f, stack.Options{NoGSO: !gso})
			if err != nil {
				return nil, errors.Join(err, l.Close())
			}
			return f.withCopy(r)
		}}
}

// connectGPUs makes the connection, on a lab that the rig closes.
func connectGPUs(ctx context.Context, l *lab.Lab, f footprint, o stack.Options) (_ *rig, err error) {
	var stacks []*stack.Stack
	end := func() (err error) {
		for _, s := range stacks {
			err = errors.Join(err, s.Close())
		}
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, end())
		}
	}()
	for _, p := range l.Ports() {
		s, err := newStack(p, o)
		if err != nil {
			return nil, err
		}
		stacks = append(stacks, s)
	}
	a, b := stacks[0], stacks[1]
	addr := netip.AddrPortFrom(l.Port(1).Addr4.Addr(), tcpPort)
	source, err := a.Register(l.Port(0).GPU().ID(), 0, uint64(f.source))
	if err != nil {
		return nil, err
	}
	tx, err := a.BindTX(source)
	if err != nil {
		return nil, err
	}
	pool, err := b.Register(l.Port(1).GPU().ID(), 0, uint64(f.pool))
	if err != nil {
		return nil, err
	}
	if _, err = b.BindRX(pool, gpuQueue); err != nil {
		return nil, err
	}
	if _, err = b.AddFlow(devmem.Flow{Dst: addr, Queue: gpuQueue}); err != nil {
		return nil, err
	}
	from, to, err := connect(ctx, a, b, addr)
	if err != nil {
		return nil, err
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
	return &rig{ours: transfer(send, receive), counted: arrived(l.Port(1), true), atLeast: true,
		close: func() error { return errors.Join(end(), l.Close()) }}, nil
}

// connect opens a connection between two stacks.
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

// ignore is for an error that another one has caused.
func ignore(error) error { return nil }

// toHost measures a connection between a guest's stack and a socket of this machine, through the gateway; the
// yardstick is the same between two sockets.
func toHost(name, about string, out bool) Measurement {
	return Measurement{Name: name, Unit: GBps, About: about, Yardstick: "the same between two sockets over loopback",
		open: func(ctx context.Context, log *slog.Logger) (*rig, error) {
			return openToHost(ctx, log, out, func(ctx context.Context, host *net.TCPListener) (*ends, error) {
				var d net.Dialer
				near, far, err := meet(ctx, host, func(ctx context.Context) (net.Conn, error) {
					return d.DialContext(ctx, "tcp4", host.Addr().String())
				})
				return &ends{near: near, far: far, close: nothing}, err
			})
		}}
}

// ends are those of a connection: a guest's, and a host's.
type ends struct {
	near, far net.Conn
	close     func() error // what carries it; the connection is closed by itself
}

func nothing() error { return nil }

// stream sends out of the guest, or into it.
func (e *ends) stream(out bool) runFunc {
	if out {
		return stream(e.near, e.far)
	}
	return stream(e.far, e.near)
}

// openToHost makes a rig whose yardstick is another connection to the same listener.
func openToHost(ctx context.Context, log *slog.Logger, out bool,
	yardstick func(ctx context.Context, host *net.TCPListener) (*ends, error)) (_ *rig, err error) {
	var closers []func() error
	end := func() (err error) {
		for _, c := range slices.Backward(closers) {
			err = errors.Join(err, c())
		}
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, end())
		}
	}()
	host, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return nil, err
	}
	closers = append(closers, host.Close)
	l, err := lab.Open(lab.Uniform(1, lab.NIC{Model: lab.Virtio}, 0), lab.Options{Log: log, Services: []lab.Service{
		lab.Gateway(gateway.Options{NAT: true, Policy: gateway.Policy{HostPorts: gateway.AllPorts}})}})
	if err != nil {
		return nil, err
	}
	closers = append(closers, l.Close)
	s, err := newStack(l.Port(0), stack.Options{})
	if err != nil {
		return nil, err
	}
	closers = append(closers, s.Close)
	v4, _ := lab.GatewayAddrs()
	near, far, err := meet(ctx, host, dialFrom(s, v4.Addr(), host))
	if err != nil {
		return nil, err
	}
	closers = append(closers, far.Close, near.Close)
	y, err := yardstick(ctx, host)
	if err != nil {
		return nil, err
	}
	closers = append(closers, y.close, y.far.Close, y.near.Close)
	r := &rig{close: end, atLeast: true, ours: (&ends{near: near, far: far}).stream(out), yardstick: y.stream(out)}
	if r.counted = sentBy(l.Port(0)); !out {
		r.counted = arrived(l.Port(0), false)
	}
	return r, nil
}

// dialFrom connects a guest's stack to a listener of this machine, which it knows by another address.
func dialFrom(s *stack.Stack, addr netip.Addr, host *net.TCPListener) func(ctx context.Context) (net.Conn, error) {
	to := netip.AddrPortFrom(addr, host.Addr().(*net.TCPAddr).AddrPort().Port())
	return func(ctx context.Context) (net.Conn, error) { return s.Dial(ctx, netip.AddrPort{}, to) }
}

// sentBy is how much payload a guest has sent from host memory.
func sentBy(p *lab.Port) func() uint64 {
	return func() (n uint64) {
		for q := range p.QueuePairs {
			_, tx := p.NIC().QueueCounters(q)
			n += tx.HostBytes
		}
		return n
	}
}

// meet connects to a listener.
func meet(ctx context.Context, l *net.TCPListener, dial func(context.Context) (net.Conn, error),
) (near, far net.Conn, err error) {
	ctx, cancel := context.WithTimeout(ctx, limits.Bench.Here())
	defer cancel()
	if err := l.SetDeadline(time.Now().Add(limits.Bench.Here())); err != nil {
		return nil, nil, err
	}
	if near, err = dial(ctx); err != nil {
		return nil, nil, err
	}
	if far, err = l.Accept(); err != nil {
		return nil, nil, errors.Join(err, near.Close())
	}
	return near, far, nil
}

// stream sends from one connection to another.
func stream(from, to net.Conn) runFunc {
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
