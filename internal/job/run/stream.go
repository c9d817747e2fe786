package run

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/session"
	"vnic.dev/vnic/internal/transfer"
)

// stream is one direction of a rail, or without rails the transfer from guest A to guest B.
type stream struct {
	r      *runner // set by attach; nil: the runner has no Session yet
	opt    Options
	plan   plan
	places [2]place // of sender and receiver
	ends   [2]*end
	rail   Rail

	wrong []error // one for each of the first maxWrong rounds with wrong bytes
	// port is the port of the first mode's first round. Each mode, a probe's too, has 1000 ports, which its rounds use in
	// turn, because Linux keeps a used port busy for a minute (TIME_WAIT).
	port  uint16
	links tally                 // what the transfers of the current or last mode have counted
	lost  error                 // of the transfer that the removal of a device has ended; nil: none
	loads map[*lab.Edge]float64 // perByte of the last mode
	probe map[string]float64    // by mode, bytes a second in the probe; nil: no probe
}

func (s *stream) here() []*end {
	return slices.DeleteFunc(slices.Clone(s.ends[:]), (*end).away)
}

// named adds the NICs' names to an error, if the run has rails.
func (s *stream) named(err error) error {
	if err == nil || s.opt.Rails == 0 {
		return err
	}
	return fmt.Errorf("%s to %s: %w", s.rail.From, s.rail.To, err)
}

func (s *stream) gone() bool {
	return slices.ContainsFunc(s.here(), func(e *end) bool { return e.QEMU != nil && e.QEMU.Ended() })
}

// runMode does the rounds of the plan. number is the mode's: with the seed it determines the data, and with port the
// ports.
func (s *stream) runMode(ctx context.Context, mode string, number uint64) (*Run, error) {
	s.links.reset()
	seeds := rand.New(rand.NewPCG(s.opt.Seed, number))
	r := &Run{Mode: mode, SHA256Match: true, Seed: s.opt.Seed, Rounds: len(s.plan.rounds)}
	if s.opt.Audit {
		r.Audit = &AuditCount{}
	}
	if !s.opt.InProc && s.opt.Rails == 0 { // with rails the CPU time of one stream is not known
		r.GuestCPU, r.GuestCPUSeconds = &CPU{}, new(float64)
	}
	for i, n := range s.plan.rounds {
		t := s.newRound(mode, i+1, n, seeds.Uint64(), s.port+uint16(int(number)*1000+i%1000))
		if err := t.run(ctx, r); err != nil {
			if len(s.plan.rounds) > 1 {
				err = fmt.Errorf("round %d of %d: %w", i+1, len(s.plan.rounds), err)
			}
			return nil, err
		}
	}
	return r, nil
}

// onBoth calls sender and receiver at the same time, each within the limit. It does not call a nil function, nor the
// function of an end on another host.
func (s *stream) onBoth(ctx context.Context, limit time.Duration, sender, receiver func(context.Context) error) error {
	type side struct {
		*end
		do func(context.Context) error
	}
	sides := []side{{s.ends[0], sender}, {s.ends[1], receiver}}
	sides = slices.DeleteFunc(sides, func(x side) bool { return x.do == nil || x.away() })
	return session.Each(ctx, limit, sides, func(x side) string { return "guest " + x.Name },
		func(ctx context.Context, x side) error { return x.do(ctx) })
}

// both calls f and g at the same time, and returns the first error, which cancels the other's context.
func both(ctx context.Context, f, g func(context.Context) error) error {
	eg, ctx := errgroup.WithContext(ctx)
	eg.Go(func() error { return f(ctx) })
	eg.Go(func() error { return g(ctx) })
	return eg.Wait()
}

// abandon ends the stream's transfer in the guests on this host, after the removal of a device. It waits for them,
// limits.Ask at most.
func (s *stream) abandon(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, limits.Ask.Here())
	defer cancel()
	var wg sync.WaitGroup
	for _, e := range s.here() {
		wg.Go(func() { _ = transfer.Finish(ctx, e.Ops) }) // it may fail, as a device is gone
	}
	wg.Wait()
}
