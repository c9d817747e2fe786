package run

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/limit"
	"vnic.dev/vnic/internal/session"
)

// Do makes the lab, transfers in each mode, closes the lab, and returns a report. It returns a report also with an
// ErrProof and, if a rail has finished a mode, with an ErrRemoved; but none if clearing up fails. If ctx ends before
// there is a report, Do returns the cause. If Options.Timeout ends the run, Do returns a *limit.Error and no report.
func Do(ctx context.Context, o Options) (*Report, error) {
	o.Alive = new(limit.Guests)
	o.Fetch.Progress = o.Alive.Fetching(o.Fetch.Progress)
	ctx, end := limit.Context(ctx, o.Timeout, o.Alive)
	defer end()
	rep, err := doWithin(ctx, &o)
	if late := (*limit.Error)(nil); err != nil && errors.As(context.Cause(ctx), &late) {
		return nil, late
	}
	return rep, err
}

func doWithin(ctx context.Context, o *Options) (*Report, error) {
	o.noteSabotage()
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	r, err := newRunner(ctx, o, fail)
	if err != nil {
		return nil, session.OrCause(ctx, err)
	}
	if o.InProc {
		defer addProcs(2 * len(r.streams))()
	}
	if o.hook != nil {
		o.hook(r)
	}
	rep, err := r.run(ctx, fail)
	kerr, cerr := r.keepCounters(), errors.Join(r.leave(err), r.close())
	switch {
	case err != nil && rep == nil && context.Cause(ctx) != nil:
		return nil, context.Cause(ctx)
	case cerr != nil:
		return nil, errors.Join(err, fmt.Errorf("clearing up: %w", cerr))
	}
	return rep, cmp.Or(err, kerr)
}

// run meets the other host, if there is one, boots the guests on this host, and transfers. If that succeeds, or fails
// with an ErrProof, run exchanges verdicts with the other host (conclude).
func (r *runner) run(ctx context.Context, fail func(error)) (*Report, error) {
	o := r.opt
	if o.Half != "" {
		defer addProcs(1)()
		if err := r.meetPeer(ctx, fail); err != nil {
			return nil, err
		}
	}
	if !o.InProc {
		o.noteLinux(&r.desc)
	}
	err := r.Boot(ctx)
	if err == nil {
		err = r.Setup(ctx, 0, r.take)
	}
	if err != nil {
		return nil, r.blame(ctx, err)
	}
	for _, g := range r.Guests {
		g.HW.SetGuest(func(f *lab.GuestFaults) { f.LateTokens = lateTokens(r.endsOf(g)...) })
	}
	if o.opened != nil {
		o.opened(r)
	}
	rep, err := r.transfer(ctx)
	return rep, r.conclude(ctx, rep, err)
}
