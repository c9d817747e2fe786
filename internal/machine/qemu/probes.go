package qemu

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"vnic.dev/vnic/guest-images"
	"vnic.dev/vnic/internal/agent"
	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/machine/assets"
)

const probesFile = "kvm.json"

// maxProbes is how many results are kept at most.
const maxProbes = 8

// probed is the result of a guest with KVM during one boot of the host (BootID).
type probed struct {
	probeKey
	OK      bool      `json:"ok"`
	Why     string    `json:"why"`
	Fetched bool      `json:"fetched"` // the kernel is the cache's
	At      time.Time `json:"at"`      // when the guest's start began
	Seconds float64   `json:"seconds"`
	Late    bool      `json:"late"`    // the failure may come from a busy machine; it holds for lateHolds
	Console []string  `json:"console"` // lines of a failed guest's console
}

const lateHolds = time.Hour

func (p *probed) took() time.Duration { return time.Duration(p.Seconds * float64(time.Second)) }

// holds reports whether a result is still valid.
func (p *probed) holds(now time.Time) bool {
	return !p.Late || now.Sub(p.At) < lateHolds && !now.Before(p.At)
}

// probeKey identifies what was probed.
type probeKey struct {
	BootID string `json:"boot_id"`
	QEMU   string `json:"qemu"`
	Kernel string `json:"kernel"`
}

func keyOf(q assets.Binary, k assets.Kernel) probeKey {
	return probeKey{BootID: oneOf("/proc/sys/kernel/random/boot_id"), QEMU: q.Version, Kernel: k.Version}
}

// probes are results, the latest last.
type probes []probed

// record is a result, and the directory of the cache that it belongs to.
type record struct {
	Cache string `json:"cache"`
	Probe probed `json:"probe"`
}

// Record returns a line for Keep if KVM, chosen by AccelAuto, may be the error's cause; else "". Another process
// may call Keep, if this one may not write to the cache.
func (e *RunError) Record() string {
	if e.record == nil {
		return ""
	}
	b, _ := json.Marshal(e.record)
	return string(b)
}

// Keep stores the result of a line that Record returned. It ignores errors, and other lines.
func Keep(line string) {
	var r record
	if json.Unmarshal([]byte(line), &r) == nil && r.Cache != "" {
		readProbes(r.Cache).with(r.Probe).save(r.Cache)
	}
}

// readProbes reads a cache's results; unreadable: none. It omits results without a time, which an older vnic
// wrote.
func readProbes(dir string) probes {
	var f struct {
		Probes probes `json:"probes"`
	}
	b, err := os.ReadFile(filepath.Join(dir, probesFile))
	if err != nil || json.Unmarshal(b, &f) != nil {
		return nil
	}
	return slices.DeleteFunc(f.Probes, func(p probed) bool { return p.At.IsZero() })
}

// find returns the valid result for a key, or else the first failure that applies to it, or nil. In the same boot of
// the host, failures of the same QEMU with other kernels apply if one of them is the cache's, which is known to boot,
// or if two failed.
func (l probes) find(key probeKey) *probed {
	var failed []*probed
	for i := range l {
		p := &l[i]
		switch {
		case !p.holds(time.Now()):
		case p.probeKey == key:
			return p
		case p.OK || p.BootID != key.BootID || p.QEMU != key.QEMU:
		case p.Fetched:
			failed = append(failed, p, p)
		default:
			failed = append(failed, p)
		}
	}
	if len(failed) < 2 {
		return nil
	}
	return failed[0]
}

// last returns the last result for a key, valid or not, or nil.
func (l probes) last(key probeKey) *probed {
	for i := range slices.Backward(l) {
		if l[i].probeKey == key {
			return &l[i]
		}
	}
	return nil
}

// with returns the results with p as the last one, without others of its key and without results of other boots of the
// host; of these at most the last maxProbes.
func (l probes) with(p probed) probes {
	l = slices.DeleteFunc(slices.Clone(l), func(o probed) bool { return o.probeKey == p.probeKey || o.BootID != p.BootID })
	l = append(l, p)
	return l[max(0, len(l)-maxProbes):]
}

// save writes the results. It ignores errors: another process then probes KVM again.
func (l probes) save(dir string) {
	_ = assets.SaveJSON(dir, probesFile, map[string]probes{"probes": l})
}

// earlyWords make the kernel print from the start, which distinguishes a guest that does nothing from a slow
// one (Linux Documentation/admin-guide/kernel-parameters.txt; the last loglevel counts).
const earlyWords = "earlyprintk=ttyS0 earlycon loglevel=6"

// probe boots a guest under KVM until its init reports, and returns the result; it gives up after limits.ProbeSilence
// without output, or after limits.Probe. err is an error without a result: the guest could not be made or started, or
// ctx ended; or it is Close's error after a successful boot.
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

// record returns the record of an error that KVM may have caused after a successful probe.
func (c *Config) record(e *RunError, begin time.Time) *record {
	r := &record{Cache: c.Cache, Probe: probed{probeKey: c.key, At: begin.UTC(),
		Fetched: c.Kernel.Source == assets.SourceCache, Seconds: time.Since(begin).Seconds()}}
	r.Probe.fail(e)
	r.Probe.Late = true // as the probe had succeeded, KVM is tried again later
	return r
}

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

// startSlow raises limits.Slow if a QEMU starts slowly, and returns limits.Slow. Only the second start counts, because
// the first may read QEMU from disk.
func startSlow(ctx context.Context, q assets.Binary) float64 {
	slow := limits.Slow()
	var took time.Duration
	for range 2 {
		ctx, cancel := context.WithTimeout(ctx, limits.QEMUVersion.Here())
		begin := time.Now()
		_, err := q.Run(ctx, "--version")
		took = time.Since(begin)
		cancel()
		if err != nil { // starting the guest returns the error
			return slow
		}
	}
	limits.Stretch(limits.Started(took))
	return limits.Slow()
}
