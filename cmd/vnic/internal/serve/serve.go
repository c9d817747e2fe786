package serve

import (
	"cmp"
	"context"
	"errors"
	"io"
	"slices"
	"sync"

	"vnic.dev/vnic/lab"
)

// Do serves until ctx ends, which is a good end, or until no connection can come any more. Nothing is left when it returns.
func Do(ctx context.Context, o Options) (err error) {
	if err := o.Check(); err != nil {
		return err
	}
	sources, err := o.open(ctx)
	defer func() {
		for _, s := range sources {
			err = errors.Join(err, s.Close())
		}
		if ctx.Err() != nil && errors.Is(err, context.Cause(ctx)) {
			err = nil // told to end before it had begun
		}
	}()
	if err != nil {
		return err
	}
	conf, err := o.world()
	if err != nil {
		return err
	}
	before := resident()
	var ports uint64 // what they have added
	// Ports are measured by themselves: what else is on the switch comes after them.
	conf.Services = slices.Insert(conf.Services, 0, func(*lab.Lab) (io.Closer, error) {
		now := resident()
		ports = now - min(now, before)
		return io.NopCloser(nil), nil
	})
	w, err := lab.New(conf)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	rep := newReport(w, sources, o.Client)
	if !o.NoGateway {
		gw, _ := lab.GatewayAddrs()
		rep.Gateway = gw.Addr().String()
	}
	rep.ResidentBytes, rep.PortBytes = resident(), ports/uint64(len(rep.Ports))
	if err := o.Ready(rep); err != nil {
		return err
	}
	var wg sync.WaitGroup
	for i, s := range sources {
		p := &port{Port: w.Port(i), src: s, note: o.Note, silence: cmp.Or(o.silence, silence),
			turn: make(chan struct{}, 1)}
		wg.Go(func() { s.each(ctx, p.serve) })
	}
	wg.Wait()
	return nil
}
