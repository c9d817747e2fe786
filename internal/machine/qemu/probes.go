package qemu

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"vnic.dev/vnic/internal/machine/assets"
)

// probesFile is the file of the cache that has what probes of KVM found.
const probesFile = "kvm.json"

// maxProbes is how many are kept, the last ones.
const maxProbes = 8

// probed is what a probe of KVM found. It holds until the machine boots again.
type probed struct {
	probeKey
	OK      bool      `json:"ok"`
	Why     string    `json:"why"`
	Fetched bool      `json:"fetched"` // the kernel is one of the cache's, which are known to boot
	At      time.Time `json:"at"`      // when it began
	Seconds float64   `json:"seconds"` // how long it took
	Late    bool      `json:"late"`    // it failed by a limit, or after a probe: a busy machine may have done that
	Console []string  `json:"console"` // the last lines of a guest's that failed
}

// lateHolds is how long a probe holds that was late.
const lateHolds = time.Hour

func (p *probed) took() time.Duration { return time.Duration(p.Seconds * float64(time.Second)) }

// holds says whether the result of a probe still counts; KVM is not tried again then.
func (p *probed) holds(now time.Time) bool {
	return !p.Late || now.Sub(p.At) < lateHolds && !now.Before(p.At)
}

// probeKey says what was probed.
type probeKey struct {
	BootID string `json:"boot_id"`
	QEMU   string `json:"qemu"`
	Kernel string `json:"kernel"`
}

func keyOf(q assets.Binary, k assets.Kernel) probeKey {
	b, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return probeKey{BootID: strings.TrimSpace(string(b)), QEMU: q.Version, Kernel: k.Version}
}

// probes are what was found, the last one last.
type probes []probed

// record is a probe for a cache's file, by a process that may still write there.
type record struct {
	Cache string `json:"cache"`
	Probe probed `json:"probe"`
}

// Record is one line for Keep, of a guest that was to run by AccelAuto, for which KVM was chosen, and that KVM has
// stopped; of others it is empty. A process that has guests may not write to the cache any more.
func (e *RunError) Record() string {
	if e.record == nil {
		return ""
	}
	b, _ := json.Marshal(e.record) // it has no value that cannot be
	return string(b)
}

// Keep takes a Record: for a while, AccelAuto is TCG.
func Keep(line string) {
	var r record
	if json.Unmarshal([]byte(line), &r) == nil && r.Cache != "" {
		readProbes(r.Cache).with(r.Probe).save(r.Cache)
	}
}

// readProbes reads the probes in a cache's directory. A file that cannot be read has none. A probe without a time is
// left out: an older vnic wrote it, which had other limits.
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

// find is the probe that answers for what is to be probed; nil: none does. A kernel with which KVM failed says that KVM
// does not work if it is known to boot, or if another one failed as well; else the kernel may be to blame, and another
// one is tried: a user's, who changes it all day, would wait for it each time.
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

// last is what was found the last time, though it may hold no more; nil: nothing.
func (l probes) last(key probeKey) *probed {
	for i := range slices.Backward(l) {
		if l[i].probeKey == key {
			return &l[i]
		}
	}
	return nil
}

// with is the probes with another one, and without those that hold no more.
func (l probes) with(p probed) probes {
	l = slices.DeleteFunc(slices.Clone(l), func(o probed) bool { return o.probeKey == p.probeKey || o.BootID != p.BootID })
	l = append(l, p)
	return l[max(0, len(l)-maxProbes):]
}

// save writes them to a cache's directory. It only saves time.
func (l probes) save(dir string) {
	_ = assets.SaveJSON(dir, probesFile, map[string]probes{"probes": l})
}
