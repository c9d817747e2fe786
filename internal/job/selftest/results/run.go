package results

import (
	"slices"

	"vnic.dev/vnic/internal/job/selftest/ktap"
	"vnic.dev/vnic/internal/job/selftest/splat"
)

// Schema is the version of the JSON form of Run. It grows when a field is removed or changes its meaning.
const Schema = 1

// Column is the copy of the tests to which a program belongs.
type Column string

// Columns.
const (
	Unmodified Column = "unmodified" // without vnic's patches
	Patched    Column = "patched"    // with vnic's patches that apply
)

// Suffix returns the text that names the column, after a program's name; "" for Unmodified.
func (c Column) Suffix() string {
	if c == Unmodified {
		return ""
	}
	return " (" + string(c) + ")"
}

// Run is one run of selftests on one device.
type Run struct {
	Schema int `json:"schema"`
	// Model is the NIC that the guest sees: "gve", "virtio", or "virtio-xdp" with --xdp; for QEMU's own NICs, QEMU's
	// name of the device.
	Model  string `json:"model"`
	Device string `json:"device"` // what emulates the NIC: "vnic" or "qemu"
	Queues int    `json:"queues"` // queue pairs of each NIC
	Kernel string `json:"kernel"` // release of the guest's kernel, as of uname -r
	// Versions of other software by name: qemu and tests.
	Versions map[string]string `json:"versions,omitempty"`
	Accel    string            `json:"accel,omitempty"` // kvm or tcg; left out if no guest ran
	Programs []Program         `json:"programs"`
}

// Program has the results of a test program.
type Program struct {
	Name   string `json:"name"` // path below tools/testing/selftests/drivers/net, for example "hw/csum.py"
	Column Column `json:"column"`
	// Left has the program's patches that do not apply to this kernel's tests, or need one that does not. If there are
	// any, the program did not run in this column.
	Left []string `json:"patches_that_do_not_apply,omitempty"`
	// Only has the patterns of the cases that the user named; empty: all that are not left out ran.
	Only    []string `json:"only,omitempty"`
	Planned int      `json:"planned"` // number of planned cases; -1: there is no plan
	Cases   []Case   `json:"cases"`
	NotRun  []string `json:"not_run,omitempty"` // planned cases without a result
	Splats  []Splat  `json:"splats,omitempty"`  // the kernel's complaints
	// SplatsLeftOut counts further complaints, which are not in Splats.
	SplatsLeftOut int      `json:"splats_left_out,omitempty"`
	Devmem        *Devmem  `json:"devmem,omitempty"` // null: the program does not test device memory
	Exit          string   `json:"exit,omitempty"`   // how the program ended, if not with exit status 0
	Seconds       float64  `json:"seconds"`
	Diagnostics   []string `json:"diagnostics,omitempty"` // output after the last case, and the end of standard error
}

// Case is one test of a program.
type Case struct {
	Name        string      `json:"name"` // "(program)": the whole program
	Result      ktap.Result `json:"result"`
	Reason      string      `json:"reason,omitempty"` // as printed, or why the parser chose Result; may have several lines
	Seconds     float64     `json:"seconds"`
	Diagnostics []string    `json:"diagnostics,omitempty"`
	Dropped     int         `json:"diagnostics_left_out,omitempty"` // lines
}

// Splat is a complaint of the guest's kernel, with the case that was running.
type Splat struct {
	Case string `json:"case"` // name of the case; "(program)": no case was running
	splat.Splat
}

// Devmem has the host's payload counters of a program whose payload must go to device memory.
type Devmem struct {
	DeviceBytes uint64 `json:"device_bytes"` // payload that the NIC wrote to device memory, or read there
	HostBytes   uint64 `json:"host_bytes"`   // payload that the NIC wrote to any other memory, or read there
	Proved      bool   `json:"proved"`
	Why         string `json:"why,omitempty"` // why it is not proved, or why there is nothing to prove
}

// Count has the number of cases with each result.
type Count map[ktap.Result]int

// Count counts a program's cases by result.
func (p *Program) Count() Count {
	c := make(Count)
	for i := range p.Cases {
		c[p.Cases[i].Result]++
	}
	return c
}

// Bad returns how many cases failed, took too long or had an error.
func (c Count) Bad() int { return c[ktap.Fail] + c[ktap.Timeout] + c[ktap.Error] }

// Case returns the first case with this name; nil: none.
func (p *Program) Case(name string) *Case {
	if i := slices.IndexFunc(p.Cases, func(c Case) bool { return c.Name == name }); i >= 0 {
		return &p.Cases[i]
	}
	return nil
}

// Program returns a program's first results in a column; nil: none.
func (r *Run) Program(name string, column Column) *Program {
	i := slices.IndexFunc(r.Programs, func(p Program) bool { return p.Name == name && p.Column == column })
	if i < 0 {
		return nil
	}
	return &r.Programs[i]
}

// Good reports whether no case failed, each planned case has a result, the kernel did not complain, and Devmem is nil
// or has Proved.
func (p *Program) Good() bool {
	return p.Count().Bad() == 0 && len(p.NotRun) == 0 && len(p.Splats)+p.SplatsLeftOut == 0 &&
		(p.Devmem == nil || p.Devmem.Proved)
}

// Good reports whether all programs are good.
func (r *Run) Good() bool {
	return !slices.ContainsFunc(r.Programs, func(p Program) bool { return !p.Good() })
}
