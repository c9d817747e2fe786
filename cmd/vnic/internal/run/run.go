package run

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"

	"golang.org/x/sync/errgroup"

	"vnic.dev/vnic/cmd/vnic/internal/guests"
	"vnic.dev/vnic/cmd/vnic/internal/limit"
	"vnic.dev/vnic/internal/machine"
)

// Do makes the lab, transfers in each mode, and reports. Whatever happens, nothing of the lab is
// left when it returns. The report is also returned with an ErrProof, so that a user sees what was
// wrong. When ctx ends, its cause is returned; Options.Timeout ends it, too.
func Do(ctx context.Context, o Options) (*Report, error) {
	o.alive = new(limit.Guests)
	o.Fetch.Progress = o.alive.Fetching(o.Fetch.Progress)
	ctx, end := limit.Context(ctx, o.Timeout, o.alive)
	defer end()
	rep, err := doWithin(ctx, &o)
	if late := (*limit.Error)(nil); err != nil && errors.As(context.Cause(ctx), &late) {
		return nil, late
	}
	return rep, err
}

func doWithin(ctx context.Context, o *Options) (*Report, error) {
	o.noteSabotage()
	if o.Rails > 0 {
		return doRails(ctx, o)
	}
	p, err := o.plan()
	if err != nil {
		return nil, err
	}
	im, err := prepareGuests(ctx, o)  // stage fetch
	defer func() { _ = im.Close() }() // of directories that were only held
	if err == nil {
		err = o.stage(ctx, Step{Stage: "gpu-memory"})
	}
	var l *runner
	if err == nil {
		l, err = newRunner(o, p)
	}
	if err != nil {
		return nil, guests.OrCause(ctx, err)
	}
	if o.InProc {
		defer addProcs(len(l.ends))()
	}
	rep, err := l.run(ctx, p, im)
	if err != nil {
		err = l.blame(ctx, err)
	}
	kerr, cerr := l.keepCounters(), l.Close()
	switch {
	case err != nil && context.Cause(ctx) != nil:
		return nil, context.Cause(ctx)
	case cerr != nil:
		return nil, errors.Join(err, fmt.Errorf("clearing up: %w", cerr))
	case err != nil || kerr != nil:
		return nil, cmp.Or(err, kerr)
	}
	return rep, errors.Join(append([]error{rep.check(o)}, l.wrong...)...)
}

// run boots the guests and transfers in each mode.
func (l *runner) run(ctx context.Context, p plan, im *machine.Images) (*Report, error) {
	o := l.opt
	if o.hook != nil {
		o.hook(l)
	}
	if err := l.boot(ctx, im); err != nil {
		return nil, err
	}
	for _, e := range l.ends {
		e.hw.SetGuest(lateTokens(e))
	}
	return l.transfer(ctx, p)
}

// transfer transfers in each mode.
func (l *runner) transfer(ctx context.Context, p plan) (*Report, error) {
	o := l.opt
	rep := l.info
	rep.describe(o)
	for i, mode := range o.Modes {
		o.Recorder.mode(mode)
		r, err := l.runMode(ctx, p, mode, uint64(i))
		if err != nil {
			return nil, fmt.Errorf("mode %s: %w", mode, err)
		}
		rep.Runs = append(rep.Runs, *r)
	}
	rep.compare()
	return &rep, nil
}

// describe says what was to be done.
func (rep *Report) describe(o *Options) {
	rep.Schema, rep.NIC, rep.BindQueues, rep.P2P, rep.MTU, rep.Family = 1, o.NIC, o.BindQueues, o.P2P, o.MTU, o.Family
	rep.Loss, rep.Reorder, rep.Seed, rep.Digest = o.Loss, o.Reorder, o.Seed, o.Digest
}

// compare compares the modes, if there are two.
func (rep *Report) compare() {
	if len(rep.Runs) == 2 && rep.Runs[1].Rate() > 0 {
		ratio := rep.Runs[0].Rate() / rep.Runs[1].Rate()
		rep.Ratio = &ratio
	}
}

// runMode transfers o.Size in one mode, in rounds that fit GPU memory.
func (l *runner) runMode(ctx context.Context, p plan, mode string, number uint64) (*Run, error) {
	l.links.reset()
	seeds := rand.New(rand.NewPCG(l.opt.Seed, number)) // each (mode, round) has its own
	r := &Run{Mode: mode, SHA256Match: true, Seed: l.opt.Seed, Rounds: len(p.rounds)}
	if l.opt.Audit {
		r.Audit = &AuditCount{}
	}
	if !l.opt.InProc && !l.rail { // they have a CPU time of their own, which is all rails'
		r.GuestCPU, r.GuestCPUSeconds = &CPU{}, new(float64)
	}
	for i, n := range p.rounds {
		t := l.newRound(p, mode, i+1, n, seeds.Uint64(), l.port+uint16(int(number)*1000+i%1000))
		if err := t.run(ctx, r); err != nil {
			if len(p.rounds) > 1 {
				err = fmt.Errorf("round %d of %d: %w", i+1, len(p.rounds), err)
			}
			return nil, err
		}
	}
	return r, nil
}

// both runs two ends at the same time; the first error cancels the other.
func both(ctx context.Context, f, g func(context.Context) error) error {
	eg, ctx := errgroup.WithContext(ctx)
	eg.Go(func() error { return f(ctx) })
	eg.Go(func() error { return g(ctx) })
	return eg.Wait()
}
