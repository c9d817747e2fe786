package gvelab

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/devmem/kernel"
	"vnic.dev/vnic/gpumem"
)

// The connections only send: with no packet in the other direction, only package devmem/kernel
// (kick.go) makes the kernel send packets that wait.
const (
	oneWays    = 4
	oneWaySize = 16 << 10 // bytes of a send
)

type oneWay struct {
	conn devmem.Conn
	far  net.Conn
	out  *meter
}

type oneWayDevice struct {
	dev    *kernel.Device
	rxBuf  devmem.Buffer
	tx     devmem.Binding
	conns  []*oneWay
	waited atomic.Int64 // times that packets were left waiting in a queueing discipline
}

// waiting describes the packets in the interface's queueing disciplines.
func waiting() string {
	link, err := netlink.LinkByName(underTestName)
	if err != nil {
		return err.Error()
	}
	qs, err := netlink.QdiscList(link)
	if err != nil {
		return err.Error()
	}
	var all []string
	for _, q := range qs {
		if s := q.Attrs().Statistics; s != nil && s.Queue != nil && s.Basic != nil {
			all = append(all, fmt.Sprintf("%s %s: %d packets wait, %d have gone", q.Type(), netlink.HandleStr(q.Attrs().Parent),
				s.Queue.Qlen, s.Basic.Packets))
		}
	}
	return strings.Join(all, "; ")
}

func (d *oneWayDevice) Enabled(context.Context, slog.Level) bool { return true }

func (d *oneWayDevice) Handle(_ context.Context, r slog.Record) error {
	if strings.HasPrefix(r.Message, "packets waited at transmit queues") {
		d.waited.Add(1)
	}
	return nil
}

func (d *oneWayDevice) WithAttrs([]slog.Attr) slog.Handler { return d }
func (d *oneWayDevice) WithGroup(string) slog.Handler      { return d }

func (g *guest) newOneWayDevice(ctx context.Context) (_ *oneWayDevice, err error) {
	if g.gpu, err = kernel.NewUDMABuf(kernel.UDMABufOptions{Size: rxSize + txSize, Node: 1}); err != nil {
		return nil, err
	}
	if g.peer, err = newNamespace(); err != nil {
		return nil, err
	}
	if err := errors.Join(tcpSettings(), g.peer.do(tcpSettings), g.links()); err != nil {
		return nil, err
	}
	d := &oneWayDevice{}
	if d.dev, err = kernel.Open(kernel.Options{Interface: underTestName, Buffers: g.gpu, Log: slog.New(d)}); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.close())
		}
	}()
	if d.rxBuf, err = d.dev.Register(0, 0, rxSize); err != nil {
		return nil, err
	}
	txBuf, err := d.dev.Register(0, rxSize, txSize)
	if err != nil {
		return nil, err
	}
	if d.tx, err = d.dev.BindTX(txBuf); err != nil {
		return nil, err
	}
	far := netip.AddrPortFrom(peerAddr.Addr(), devmemPort)
	var l net.Listener
	if err := g.peer.do(func() (err error) { l, err = net.Listen("tcp", far.String()); return err }); err != nil {
		return nil, err
	}
	defer l.Close()
	for i := range oneWays {
		w := &oneWay{out: newMeter(fmt.Sprintf("connection %d, one way", i))}
		local := netip.AddrPortFrom(underTest.Addr(), uint16(devmemPort+1+i))
		if w.conn, err = d.dev.Dial(ctx, local, far); err != nil {
			return nil, err
		}
		if w.far, err = l.Accept(); err != nil {
			return nil, err
		}
		d.conns = append(d.conns, w)
		go receive(w.far, w.out)
		off := uint64(i) * oneWaySize
		go w.send(d.tx.ID(), g.gpu.Bytes()[rxSize+off:][:oneWaySize], off)
	}
	return d, nil
}

func (d *oneWayDevice) close() error {
	var errs []error
	for _, w := range d.conns {
		errs = append(errs, w.far.Close())
	}
	return errors.Join(append(errs, d.dev.Close())...)
}

func (w *oneWay) send(from uint32, mem []byte, off uint64) {
	t := time.NewTicker(pace)
	defer t.Stop()
	for o := uint64(0); ; o += oneWaySize {
		<-t.C
		gpumem.FillAt(mem, seed, o)
		n, err := w.conn.SendDevmem(from, []devmem.Range{{Off: off, Len: oneWaySize}})
		if err == nil {
			_, _, err = w.conn.ReadCompletion(time.Time{})
		}
		if err == nil && n != oneWaySize {
			err = fmt.Errorf("%d bytes were sent, not %d", n, oneWaySize)
		}
		if err != nil {
			w.out.fail(err)
			return
		}
	}
}

// flow waits, patience at most, until the bytes of two more sends have arrived on each connection.
func (d *oneWayDevice) flow(ctx context.Context, when string) error {
	limit, cancel := context.WithTimeoutCause(ctx, patience, errStalled)
	defer cancel()
	var outs []*meter
	for _, w := range d.conns {
		outs = append(outs, w.out)
	}
	err := all(limit, 2*oneWaySize, outs...)
	if err != nil {
		err = fmt.Errorf("%s: %w\n%s", when, err, waiting())
		for _, w := range d.conns {
			err = fmt.Errorf("%w\n%s", err, w.conn.State())
		}
	}
	return err
}

// oneWay binds and unbinds a queue, at least a.Times times, and until packets have waited at least once.
func (g *guest) oneWay(ctx context.Context, a *Args) (_ any, err error) {
	d, err := g.newOneWayDevice(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	if err := d.flow(ctx, "before any queue is bound"); err != nil {
		return nil, err
	}
	cycles := 0
	for ; cycles < a.Times || d.waited.Load() == 0; cycles++ {
		rx, err := d.dev.BindRX(d.rxBuf, 3)
		if err != nil {
			return nil, err
		}
		if err := d.flow(ctx, fmt.Sprintf("cycle %d, queue 3 is bound", cycles)); err != nil {
			return nil, err
		}
		if err := rx.Close(); err != nil {
			return nil, err
		}
		if err := d.flow(ctx, fmt.Sprintf("cycle %d, queue 3 is not bound any more", cycles)); err != nil {
			return nil, err
		}
		<-rx.Done()
	}
	say(ctx, "bound and unbound %d times; packets waited for nothing after %d restarts, and were sent", cycles,
		d.waited.Load())
	return nil, nil
}
