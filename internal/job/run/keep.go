package run

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/report"
	"vnic.dev/vnic/internal/wire"
)

// keep makes a file with this name in KeepDir (if that is "", in vnic-run-SEED), which the run does not remove. Without
// Keep it returns nil.
func (o *Options) keep(name string) (*os.File, error) {
	if !o.Keep {
		return nil, nil
	}
	dir := cmp.Or(o.KeepDir, fmt.Sprintf("vnic-run-%d", o.Seed))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("--keep: %w", err)
	}
	f, err := os.Create(filepath.Join(dir, name))
	if err != nil {
		return nil, fmt.Errorf("--keep: %w", err)
	}
	o.Tell("keeping %s", f.Name())
	return f, nil
}

// keepCounters writes the counters of the transferring NICs on this host to r.kept, and closes that. If r.kept is nil,
// it does nothing.
func (r *runner) keepCounters() error {
	if r.kept == nil {
		return nil
	}
	type nic struct {
		Port  control.PortCounters
		Link  wire.Counters
		Drops map[string]uint64
	}
	all := map[string]nic{}
	for _, p := range r.ports() {
		n := nic{Link: p.Link().Counters(), Drops: map[string]uint64{}}
		n.Port, _ = p.PortCounters()
		for r, count := range n.Link.Drops {
			if count > 0 {
				n.Drops[wire.DropReason(r).String()] = count
			}
		}
		all[p.Name()] = n
	}
	return errors.Join(report.Encoder(r.kept).Encode(all), r.kept.Close())
}
