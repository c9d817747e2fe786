package qemu

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"vnic.dev/vnic/guest-images"
	"vnic.dev/vnic/internal/agent"
	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/machine/assets"
)

// earlyWords make the kernel print from its first instructions on, which distinguishes a guest that
// does nothing from a slow one. A healthy boot prints some 30 lines (1200 bytes);
// limits.ProbeSilence is the longest time between two of them (Linux
// Documentation/admin-guide/kernel-parameters.txt; the last of two loglevels counts).
const earlyWords = "earlyprintk=ttyS0 earlycon loglevel=6"

// probe boots a guest under KVM until its init runs. It fails soon if the guest prints nothing for
// a while, so that a first run without working KVM does not wait long. err is for errors that have
// nothing to do with KVM.
func probe(ctx context.Context, r *assets.Resolved) (*probed, error) {
	p := &probed{probeKey: keyOf(r.QEMU, r.Kernel), Fetched: r.Kernel.Source == assets.SourceCache, At: time.Now().UTC()}
	var initrd io.ReadCloser
	img, err := guestimages.Build(ctx, guestimages.Options{CacheDir: r.Cache})
	if err == nil {
		initrd, err = img.Initrd(agent.Config{})
	}
	if err != nil {
		return nil, fmt.Errorf("KVM probe: %w", err)
	}
	defer func() { _ = initrd.Close() }()
	slow := startSlow(ctx, r.QEMU)
	stretched := func(l limits.Limit) time.Duration { return time.Duration(float64(l) * slow) }
	begin := time.Now()
	m, err := Start(ctx, Config{
		Name: "KVM probe", QEMU: r.QEMU, Kernel: r.Kernel, Initrd: []io.Reader{initrd}, RAMSize: 256 << 20,
		Accel: AccelKVM, Append: earlyWords, Silence: stretched(limits.ProbeSilence), BootLimit: stretched(limits.Probe),
		TimeLimit: 2 * stretched(limits.Probe),
	})
	p.Seconds = time.Since(begin).Seconds()
	if ctx.Err() != nil {
		if m != nil {
			_ = m.Close()
		}
		return nil, ctx.Err()
	}
	var e *RunError
	switch {
	case err == nil:
		p.OK = true
		return p, m.Close()
	case errors.As(err, &e):
		p.fail(e)
		return p, nil
	}
	return nil, err
}

// record returns the record of a guest that was started with KVM after a successful probe, and that
// KVM has stopped.
func (c *Config) record(e *RunError, begin time.Time) *record {
	r := &record{Cache: c.Cache, Probe: probed{probeKey: c.key, At: begin.UTC(),
		Fetched: c.Kernel.Source == assets.SourceCache, Seconds: time.Since(begin).Seconds()}}
	r.Probe.fail(e)
	r.Probe.Late = true // the probe succeeded, so KVM is tried again later
	return r
}

// fail notes how a probe's guest ended.
func (p *probed) fail(e *RunError) {
	p.Why = e.Err.Error()
	if e.Detail != "" {
		p.Why += ": " + e.Detail
	}
	if len(e.Stderr) > 0 {
		p.Why += ": " + e.Stderr[0]
	}
	p.Late = errors.Is(e.Err, ErrSilent) || errors.Is(e.Err, ErrNoInit)
	p.Console = e.Console
}

// startSlow returns how many times slower this machine starts a QEMU than the machine for which the
// limits were set. Before the first guest nothing else is known. The second start counts, which
// reads nothing from disk. All limits grow by this factor.
func startSlow(ctx context.Context, q assets.Binary) float64 {
	slow := limits.Slow()
	var took time.Duration
	for range 2 {
		ctx, cancel := context.WithTimeout(ctx, limits.QEMUVersion.Here())
		begin := time.Now()
		_, err := q.Run(ctx, "--version")
		took = time.Since(begin)
		cancel()
		if err != nil { // starting the guest will return the error
			return slow
		}
	}
	limits.Stretch(limits.Started(took))
	return limits.Slow()
}
