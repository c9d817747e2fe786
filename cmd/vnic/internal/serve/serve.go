package serve

import (
	"context"
	"errors"
	"sync"

	"vnic.dev/vnic/cmd/vnic/internal/world"
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
	before := resident()
	w, err := world.New(o.world())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	rep := newReport(w, sources, o.Client)
	rep.Memory(before)
	if err := o.Ready(rep); err != nil {
		return err
	}
	var wg sync.WaitGroup
	for i, s := range sources {
		p := &port{Port: w.Port(i), src: s, note: o.Note, turn: make(chan struct{}, 1)}
		wg.Go(func() { s.each(ctx, p.serve) })
	}
	wg.Wait()
	return nil
}
