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

// stream is a transfer of one direction of a rail.
type stream struct {
	r      *runner // nil: it is planned, and no more
	opt    Options
	plan   plan
	places [2]place // of sender and receiver
	ends   [2]*end  // sender, receiver
	rail   Rail

	wrong []error               // destinations that are not what was sent, the first byte of each round
	port  uint16                // the first port that rounds use: Linux keeps a connection's ports busy for a minute (TIME_WAIT)
	links tally                 // what of links the mode has used
	lost  error                 // why the transfer has ended early, of what was removed
	loads map[*lab.Edge]float64 // of the last transfer: see perByte
	probe map[string]float64    // by mode, bytes a second without links' rates; nil: nobody has tried
}

// here are the ends that are not away.
func (s *stream) here() []*end {
	return slices.DeleteFunc(slices.Clone(s.ends[:]), (*end).away)
}

// named puts the stream's name before an error, if there may be others.
func (s *stream) named(err error) error {
	if err == nil || s.opt.Rails == 0 {
		return err
	}
	return fmt.Errorf("%s to %s: %w", s.rail.From, s.rail.To, err)
}

// gone reports whether a guest of the stream has ended.
func (s *stream) gone() bool {
	return slices.ContainsFunc(s.here(), func(e *end) bool { return e.QEMU != nil && e.QEMU.Ended() })
}

// runMode transfers Options.Size in one mode, in rounds that fit GPU memory.
func (s *stream) runMode(ctx context.Context, mode string, number uint64) (*Run, error) {
	s.links.reset()
	seeds := rand.New(rand.NewPCG(s.opt.Seed, number)) // each (mode, round) has its own
	r := &Run{Mode: mode, SHA256Match: true, Seed: s.opt.Seed, Rounds: len(s.plan.rounds)}
	if s.opt.Audit {
		r.Audit = &AuditCount{}
	}
	if !s.opt.InProc && s.opt.Rails == 0 { // else the CPU time is all streams'
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

// onBoth calls a function for the sender and one for the receiver at the same time, within a limit. A nil function, or
// one of an end that is away, is not called.
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

// both calls two functions at the same time; the first error cancels the other's context.
func both(ctx context.Context, f, g func(context.Context) error) error {
	eg, ctx := errgroup.WithContext(ctx)
	eg.Go(func() error { return f(ctx) })
	eg.Go(func() error { return g(ctx) })
	return eg.Wait()
}

// abandon ends what is left in the guests of a transfer that is not to go on.
func (s *stream) abandon(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, limits.Ask.Here())
	defer cancel()
	var wg sync.WaitGroup
	for _, e := range s.here() {
		wg.Go(func() { _ = transfer.Finish(ctx, e.Ops) }) // what it cannot give back went with the device
	}
	wg.Wait()
}
