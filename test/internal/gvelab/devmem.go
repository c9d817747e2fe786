package gvelab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"
	"time"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/devmem/kernel"
	"vnic.dev/vnic/gpumem"
)

const (
	devmemPort = 7002 // the peer's port
	// A dma-buf with fewer than 32 free pages receives nothing (docs/specs/gve.md, 11).
	rxSize = 12 << 20
	txSize = 1 << 20
)

// dut is the interface under test, with a connection to the peer.
type dut struct {
	dev  *kernel.Device
	conn devmem.Conn
	far  net.Conn
	gpu  *kernel.UDMABuf

	rxBuf, txBuf devmem.Buffer
	flow         devmem.Flow
	rule         devmem.FlowID

	device, host *meter // bytes received in device memory and in host memory
	out          *meter // bytes sent from device memory that have arrived at the peer

	rx, tx devmem.Binding
	source chan devmem.Binding // the binding from which the sender sends next

	refused atomic.Pointer[refusal] // of the last send; nil: it was not refused
}

// refusal is the error of the last send, the last of times failures in a row.
type refusal struct {
	err   error
	times int
}

func (r *refusal) String() string {
	if r == nil {
		return "no send was refused"
	}
	return fmt.Sprintf("%d sends in turn were refused, the last: %v", r.times, r.err)
}

func openDevice(ctx context.Context, g *guest) (_ *dut, err error) {
	d := &dut{gpu: g.gpu, device: newMeter("device memory TCP, received in device memory"),
		host: newMeter("device memory TCP, received in host memory"), out: newMeter("device memory TCP, sent"),
		source: make(chan devmem.Binding)}
	if d.dev, err = kernel.Open(kernel.Options{Interface: underTestName, Buffers: g.gpu}); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.close())
		}
	}()
	if n := d.dev.Queues(); n < 4 {
		return nil, fmt.Errorf("%s has %d queues, not 4", underTestName, n)
	}
	if err := d.dev.SetRSS(2); err != nil {
		return nil, err
	}
	if d.rxBuf, err = d.dev.Register(0, 0, rxSize); err != nil {
		return nil, err
	}
	if d.txBuf, err = d.dev.Register(0, rxSize, txSize); err != nil {
		return nil, err
	}
	g.opened++
	local := netip.AddrPortFrom(underTest.Addr(), devmemPort+g.opened)
	d.flow = devmem.Flow{Dst: local, Queue: 3}
	if d.rule, err = d.dev.AddFlow(d.flow); err != nil {
		return nil, err
	}
	var l net.Listener
	if err := g.peer.do(func() (err error) {
		l, err = net.Listen("tcp", fmt.Sprintf("%v:%d", peerAddr.Addr(), devmemPort))
		return err
	}); err != nil {
		return nil, err
	}
	defer l.Close()
	if d.conn, err = d.dev.Dial(ctx, local, netip.AddrPortFrom(peerAddr.Addr(), devmemPort)); err != nil {
		return nil, err
	}
	if d.far, err = l.Accept(); err != nil {
		return nil, err
	}
	go send(d.far, newMeter(""))
	go receive(d.far, d.out)
	go d.receive()
	go d.send()
	return d, nil
}

// close closes the peer's end and the device. Among the errors is one if device memory stays in use.
func (d *dut) close() error {
	var err error
	if d.far != nil {
		err = d.far.Close()
	}
	return errors.Join(err, d.dev.Close())
}

func (d *dut) receive() {
	frags, linear := make([]devmem.Frag, 64), make([]byte, 256<<10)
	var tokens []devmem.TokenRange
	fail := func(err error) { d.device.fail(err); d.host.fail(err) }
	for o := uint64(0); ; {
		n, nf, nl, err := d.conn.RecvDevmem(frags, linear, 0)
		if err != nil {
			fail(err)
			return
		}
		if nf == 0 {
			err = compare(o, linear[:nl])
		}
		start, inDevice := o, 0
		tokens = tokens[:0]
		for _, f := range frags[:nf] {
			if f.Kind != devmem.Dmabuf {
				fail(fmt.Errorf("%d linear bytes in a packet of a bound queue", f.Size))
				return
			}
			if err == nil {
				err = compare(start, d.gpu.Bytes()[f.Off:f.Off+uint64(f.Size)])
			}
			start, inDevice = start+uint64(f.Size), inDevice+int(f.Size)
			tokens = append(tokens, devmem.TokenRange{Start: f.Token, Count: 1})
		}
		if err == nil && inDevice+nl != n {
			err = fmt.Errorf("%d bytes in device memory and %d in host memory are not %d", inDevice, nl, n)
		}
		if err == nil && len(tokens) > 0 {
			_, err = d.conn.DontNeed(tokens)
		}
		if err != nil {
			fail(err)
			return
		}
		o += uint64(n)
		d.device.n.Add(uint64(inDevice))
		d.host.n.Add(uint64(nl))
	}
}

// send waits for the completion of each send, because it uses the memory again.
func (d *dut) send() {
	const size = 64 << 10
	mem := d.gpu.Bytes()[rxSize:]
	t := time.NewTicker(pace)
	defer t.Stop()
	var from devmem.Binding
	var o uint64
	for {
		var tick <-chan time.Time
		if from != nil {
			tick = t.C
		}
		select {
		case from = <-d.source:
			continue
		case <-d.out.dead:
			return
		case <-tick:
		}
		gpumem.FillAt(mem[:size], seed, o)
		n, err := d.conn.SendDevmem(from.ID(), []devmem.Range{{Off: 0, Len: size}})
		d.refuse(err)
		o += uint64(n)
		if goesOn(err) { // err may concern the rest of a send that was partly done
			err = nil
		}
		if n > 0 {
			_, _, cerr := d.conn.ReadCompletion(time.Time{})
			err = errors.Join(err, cerr)
		}
		if err != nil {
			d.out.fail(err)
			return
		}
	}
}

// goesOn reports whether a send may succeed after one with the error err. ENODEV and EHOSTUNREACH: the interface was
// down. EINVAL: that, or the binding was closed.
func goesOn(err error) bool {
	return errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.ENODEV) || errors.Is(err, syscall.EHOSTUNREACH)
}

func (d *dut) refuse(err error) {
	r := &refusal{err: err, times: 1}
	if last := d.refused.Load(); err != nil && last != nil {
		r.times += last.times
	} else if err == nil {
		r = nil
	}
	d.refused.Store(r)
}

// bind steers the connection's flow to the last one of queues, and binds queues for receive and memory for transmit.
func (d *dut) bind(ctx context.Context, queues ...int) error {
	if last := queues[len(queues)-1]; last != d.flow.Queue {
		if err := d.dev.DelFlow(d.rule); err != nil {
			return err
		}
		d.flow.Queue = last
		var err error
		if d.rule, err = d.dev.AddFlow(d.flow); err != nil {
			return err
		}
	}
	var err error
	if d.rx, err = d.dev.BindRX(d.rxBuf, queues...); err != nil {
		return err
	}
	if d.tx, err = d.dev.BindTX(d.txBuf); err != nil {
		return err
	}
	select {
	case d.source <- d.tx:
		return nil
	case <-d.out.dead:
		return d.out.ended()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (d *dut) unbind(ctx context.Context) error {
	for _, b := range []devmem.Binding{d.rx, d.tx} {
		if err := b.Close(); err != nil {
			return err
		}
	}
	limit, cancel := context.WithTimeoutCause(ctx, patience, errStalled)
	defer cancel()
	for _, b := range []struct {
		what string
		devmem.Binding
	}{{"receive", d.rx}, {"transmit", d.tx}} {
		select {
		case <-b.Done():
		case <-limit.Done():
			return fmt.Errorf("memory of %s binding %d is still in use: %w\n%s\nour end: %s\nstats: %+v", b.what, b.ID(),
				context.Cause(limit), waiting(), d.conn.State(), d.dev.Stats())
		}
	}
	d.rx, d.tx = nil, nil
	return nil
}
