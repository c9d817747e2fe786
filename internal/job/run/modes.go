package run

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"

	"golang.org/x/sync/errgroup"

	"vnic.dev/vnic/internal/limits"
)

// transfer runs the transfers of each mode, until one fails. A report may come with an error: about what the transfers
// did not prove, or about the removed device that ended one.
func (r *runner) transfer(ctx context.Context) (*Report, error) {
	o := r.opt
	rep := r.describe()
	if self, other := o.here(); o.Half != "" {
		rep.Half = &Half{Guest: r.desc.Guests[self].Name, Peer: r.desc.Guests[other].Name}
	}
	if err := r.probe(ctx); err != nil {
		return nil, r.blame(ctx, err)
	}
	if o.Rails > 0 {
		rep.Scale = r.Lab.Clock().Scale()
	}
	defer r.playScript(ctx)()
	for i, mode := range o.Modes {
		o.Recorder.mode(mode)
		if err := r.runMode(ctx, rep, mode, uint64(i)); err != nil {
			return nil, r.blame(ctx, fmt.Errorf("mode %s: %w", mode, err))
		}
		if err := r.lost(); err != nil {
			// The guests get some time to release the devices.
			removals, cancel := context.WithTimeout(ctx, limits.Ask.Here())
			r.Lab.AwaitRemovals(removals)
			cancel()
			if err = r.blame(ctx, err); len(rep.Rails) == 0 {
				return nil, err
			}
			return rep, errors.Join(err, r.check(rep)) // rails have finished this mode or an earlier one
		}
	}
	if len(rep.Runs) == 2 && rep.Runs[1].Rate() > 0 {
		ratio := rep.Runs[0].Rate() / rep.Runs[1].Rate()
		rep.Ratio = &ratio
	}
	return rep, r.check(rep)
}

func (r *runner) describe() *Report {
	o, i := r.opt, &r.Info
	rep := &Report{Schema: 1, Guest: i.Guest, QEMU: i.QEMU, Kernel: i.Kernel, Accel: i.Accel, Untested: i.Untested,
		BootSeconds: i.BootSeconds, BindQueues: o.BindQueues, P2P: !r.desc.NoP2P, MTU: r.Lab.MTU(), Family: o.Family,
		Loss: o.Loss, Reorder: o.Reorder, Seed: o.Seed, Digest: o.Digest,
		NIC: strings.Join(o.modelsOf(&r.desc.Guests[r.ways[0][0]]), "+")}
	if other := strings.Join(o.modelsOf(&r.desc.Guests[r.ways[0][1]]), "+"); other != rep.NIC {
		rep.NIC += "," + other
	}
	return rep
}

func (r *runner) runMode(ctx context.Context, rep *Report, mode string, number uint64) error {
	before, carried := countersOf(r.ports()...), r.carried()
	eg, ctx := errgroup.WithContext(ctx)
	all := newBarrier(ctx, len(r.streams))
	rail := make([]*barrier, r.opt.rails())
	for i := range rail {
		rail[i] = newBarrier(ctx, len(r.ways))
	}
	moved := r.opt.progress(mode, len(r.streams))
	runs := make([]*Run, len(r.streams))
	for i, s := range r.streams {
		s.opt.Stage = func(step Step) {
			if i == 0 && r.opt.Stage != nil {
				r.opt.Stage(step)
			}
			switch {
			case step.Stage == "transfer" && step.Round == 1:
				all.wait()
				r.begun()
			case step.Stage != "prepare":
				rail[s.rail.Rail].wait()
			}
		}
		s.opt.Progress = func(_ string, n, _ uint64) { moved(i, n) }
		eg.Go(func() (err error) {
			if runs[i], err = s.runMode(ctx, mode, number); err == nil {
				return nil
			}
			err = s.named(s.blameRemoval(err))
			if ctx.Err() != nil || !errors.Is(err, ErrRemoved) || s.gone() || r.peer != nil {
				return err
			}
			runs[i], s.lost = nil, err // the other streams go on
			all.leave()
			rail[s.rail.Rail].leave()
			s.abandon(ctx)
			return nil
		})
	}
	if err := eg.Wait(); err != nil {
		return err
	}
	for _, s := range r.streams {
		s.loads = s.perByte(mode)
	}
	if r.opt.Rails == 0 {
		if runs[0] != nil {
			rep.Runs = append(rep.Runs, *runs[0])
		}
		return nil
	}
	sum := Run{Mode: mode, SHA256Match: true, Seed: r.opt.Seed, Links: r.linksSince(carried),
		StackCopies: r.stackCopies(mode, runs)}
	model, limits := r.model()
	for i, s := range r.streams {
		if runs[i] == nil {
			continue
		}
		one := s.rail
		one.Run = *runs[i]
		if model[i] < math.Inf(1) && r.peer == nil {
			one.Share = s.measure(runs[i], r.Lab.Clock().Scale(), s.probe[mode], model[i], limits[i])
		}
		rep.Rails = append(rep.Rails, one)
		rep.add(&sum, runs[i])
	}
	// These counters are of whole ports, which the directions of a rail share: they are not the rails' sums.
	now := countersOf(r.ports()...)
	sum.DroppedPackets, sum.CopyEngineBytes = now.drops-before.drops, now.engine-before.engine+sum.BouncedBytes
	rep.Runs = append(rep.Runs, sum)
	return nil
}

func (r *runner) lost() error {
	var errs []error
	for _, s := range r.streams {
		errs = append(errs, s.lost)
	}
	return errors.Join(errs...)
}
