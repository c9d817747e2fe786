package serve

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
	"sync"

	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/machine/qemu"
)

func (o *Options) text(port, text string) { o.Event(port, "%s", text) }

// Do serves until ctx ends, which is no error, or, if all sockets are connected ones (FDs), until their connections
// have ended.
func Do(ctx context.Context, o Options) (err error) {
	if err := o.Check(); err != nil {
		return err
	}
	q := newQuiet()
	if o.Log != nil {
		o.Log = slog.New(&quietHandler{Handler: o.Log.Handler(), q: q})
	}
	sources, err := o.open(ctx)
	defer func() {
		for _, s := range sources {
			err = errors.Join(err, s.Close())
		}
		if ctx.Err() != nil && errors.Is(err, context.Cause(ctx)) {
			err = nil // ctx ended, for example while o.open waited for a directory's lock
		}
	}()
	if err != nil {
		return err
	}
	services, err := o.gateway()
	if err != nil {
		return err
	}
	before := resident()
	var ports uint64 // bytes that the ports have added
	// lab.Open calls the services when it has made the ports, and measure first: the others add more memory.
	measure := func(*lab.Lab) (io.Closer, error) {
		now := resident()
		ports = now - min(now, before)
		return io.NopCloser(nil), nil
	}
	l, err := lab.Open(o.describe(), lab.Options{Log: o.Log, Services: slices.Concat([]lab.Service{measure}, services,
		o.Services), Note: o.text, Poll: o.Poll, Hot: o.Hot, Flows: o.Flows, Storm: int(o.Storm), FrontendMemory: o.Memory,
		Sharing: o.Broker.Sharing})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	gpus, err := o.shareGPUs(ctx, l)
	defer func() { err = errors.Join(err, gpus.Close()) }()
	if err != nil {
		return err
	}
	rep, err := o.report(l, sources)
	if err != nil {
		return err
	}
	rep.ResidentBytes, rep.PortBytes = resident(), ports/uint64(len(rep.Ports))
	if o.Confine != nil {
		if err := o.Confine(); err != nil {
			return err
		}
	}
	if err := o.Ready(rep); err != nil {
		return err
	}
	var wg sync.WaitGroup
	if o.Lab != nil {
		wg.Go(func() {
			l.Play(ctx, o.Lab.Script, func(e lab.Event, err error) { o.Event("lab", "%s", e.Told(err)) })
		})
	}
	for i, s := range sources {
		p := &port{Port: l.Port(i), src: s, note: q.note(o.Event), silence: cmp.Or(o.silence, limits.Connected.Here()),
			takeover: cmp.Or(o.takeover, limits.Takeover.Here()), outside: o.Broker, turn: make(chan struct{}, 1)}
		wg.Go(func() { s.each(ctx, p.serve) })
	}
	wg.Wait()
	return nil
}

// report describes the NICs, the GPUs and the gateway, and how QEMU is started with them.
func (o *Options) report(l *lab.Lab, sources []source) (*Report, error) {
	r := newReport(l, sources, o.Client, o.sharesGPUs())
	r.Boot = o.Boot
	cpus := guestCPUs
	if o.Lab != nil {
		if err := r.addGuests(l, o.Lab, o.Client); err != nil {
			return nil, err
		}
		cpus = 0
		for _, m := range o.Lab.Machines {
			cpus = max(cpus, m.CPUs)
		}
	}
	r.addClock(qemu.ClockArgs(cpus, o.Accel))
	if !o.Off() {
		gw, _ := lab.GatewayAddrs()
		r.Gateway = gw.Addr().String()
		r.gateway, _ = o.gatewayOptions()
	}
	return r, nil
}
