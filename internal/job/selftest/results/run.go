package results

import (
	"slices"

	"vnic.dev/vnic/internal/job/selftest/ktap"
	"vnic.dev/vnic/internal/job/selftest/splat"
)

// Schema is the number of the form of Run in JSON. It grows when a field goes or changes its meaning.
const Schema = 1

// Column says which copy of the tests a program is of.
type Column string

// Columns.
const (
	Unmodified Column = "unmodified" // as the kernel's source package has them
	Patched    Column = "patched"    // with vnic's patch series applied
)

// Run is one run of selftests on one device.
type Run struct {
	Schema int `json:"schema"`
	// Model is what the guest sees: "gve", "virtio", or "virtio-xdp" with --xdp; of QEMU's own NICs their name there.
	Model  string `json:"model"`
	Device string `json:"device"` // what emulates it: "vnic" or "qemu"
	Queues int    `json:"queues"` // pairs of them, of each NIC
	Kernel string `json:"kernel"` // the guest's, as uname -r has it
	// Versions of what else took part, by name: vnic, qemu, tests, ethtool, iproute2 and so on.
	Versions map[string]string `json:"versions,omitempty"`
	Accel    string            `json:"accel,omitempty"` // kvm or tcg
	Programs []Program         `json:"programs"`
}

// Program is a test program that was run.
type Program struct {
	Name   string `json:"name"` // its path below tools/testing/selftests/drivers/net, as "hw/csum.py"
	Column Column `json:"column"`
	// Left has the patches that do not apply to this kernel's tests; with one of them the program was not run in this
	// column.
	Left []string `json:"patches_that_do_not_apply,omitempty"`
	// Only has the patterns of the cases that were asked for; empty: all of them.
	Only    []string `json:"only,omitempty"`
	Planned int      `json:"planned"` // cases, by the program; -1: it said nothing
	Cases   []Case   `json:"cases"`
	NotRun  []string `json:"not_run,omitempty"` // planned cases that the program did not come to
	Splats  []Splat  `json:"splats,omitempty"`  // what the kernel complained about
	// SplatsLeftOut counts complaints behind the ones in Splats.
	SplatsLeftOut int      `json:"splats_left_out,omitempty"`
	Devmem        *Devmem  `json:"devmem,omitempty"` // null: no test of device memory
	Exit          string   `json:"exit,omitempty"`   // how it ended, if not with status 0
	Seconds       float64  `json:"seconds"`
	Diagnostics   []string `json:"diagnostics,omitempty"` // what it printed behind the last case
}

// Case is one test of a program.
type Case struct {
	Name        string      `json:"name"` // "(program)": the program as a whole
	Result      ktap.Result `json:"result"`
	Reason      string      `json:"reason,omitempty"` // as the program gave it; may have several lines
	Seconds     float64     `json:"seconds"`
	Diagnostics []string    `json:"diagnostics,omitempty"`
	Dropped     int         `json:"diagnostics_left_out,omitempty"` // lines
}

// Splat is a complaint of the guest's kernel, with the case that was under way.
type Splat struct {
	Case string `json:"case"` // its name; "(program)": none was
	splat.Splat
}

// Devmem is what the host's counters of a program say, whose payload is to go to device memory.
type Devmem struct {
	DeviceBytes uint64 `json:"device_bytes"` // payload that the NIC wrote to device memory, or read there
	HostBytes   uint64 `json:"host_bytes"`   // of the same connections: to or from any other memory
	Proved      bool   `json:"proved"`
	Why         string `json:"why,omitempty"` // it is not proved
}

// Count is how many cases have which result.
type Count map[ktap.Result]int

// Count counts a program's cases.
func (p *Program) Count() Count {
	c := make(Count)
	for i := range p.Cases {
		c[p.Cases[i].Result]++
	}
	return c
}

// Bad is how many cases failed, in whatever way.
func (c Count) Bad() int { return c[ktap.Fail] + c[ktap.Timeout] + c[ktap.Error] }

// Case finds a case by its name; nil: it has no result.
func (p *Program) Case(name string) *Case {
	if i := slices.IndexFunc(p.Cases, func(c Case) bool { return c.Name == name }); i >= 0 {
		return &p.Cases[i]
	}
	return nil
}

// Program finds a program's run; nil: it was not run.
func (r *Run) Program(name string, column Column) *Program {
	i := slices.IndexFunc(r.Programs, func(p Program) bool { return p.Name == name && p.Column == column })
	if i < 0 {
		return nil
	}
	return &r.Programs[i]
}

// Good reports whether nothing went wrong, whatever was expected: no case failed or was left out, the kernel complained
// about nothing, and payload was where it had to be.
func (p *Program) Good() bool {
	return p.Count().Bad() == 0 && len(p.NotRun) == 0 && len(p.Splats)+p.SplatsLeftOut == 0 &&
		(p.Devmem == nil || p.Devmem.Proved)
}

// Good reports whether all programs are good.
func (r *Run) Good() bool {
	return !slices.ContainsFunc(r.Programs, func(p Program) bool { return !p.Good() })
}
