package selftest

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"vnic.dev/vnic/internal/job/selftest/ktap"
	"vnic.dev/vnic/internal/job/selftest/results"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/nic"
	"vnic.dev/vnic/internal/session"
)

// DefaultQueues is the number of queue pairs that expectations are for.
const DefaultQueues = 4

// Options are the flags of `vnic selftest`.
type Options struct {
	session.Common
	lab.NICOptions // MTU is for both ends

	NIC      string        // lab.GVE or lab.Virtio
	Device   string        // a model of QEMU's NICs; "": a NIC of vnic
	Programs []string      // PROGRAM or PROGRAM:CASE; none: all programs except NotForUs
	Queues   int           // queue pairs of each NIC; with Device it must be DefaultQueues, and has no effect
	Sabotage *nic.Sabotage // faults of the tested NIC; nil: none
	IOMMU    bool          // the guest's kernel translates the NICs' addresses; only with gve
	Timeout  time.Duration // of each program; if the default (limits.Selftest), longer on slow machines
	Repeat   int           // how often the list of programs is run; 0: once

	Source  string // a kernel source tree; "": the source package of the guest kernel's series
	Tests   string // directory with files that replace files of the tests; "": none
	Patched bool   // programs that vnic's patches change run a second time, patched, if the patches apply

	// Shell opens a shell in the guest after the first failure, or complaint of the kernel, that leaves the guest running.
	// The run ends with the shell.
	Shell  bool
	Stdin  *os.File
	Stdout io.Writer
	Stderr io.Writer
	GDB    int    // TCP port of 127.0.0.1 on which QEMU listens for gdb; 0: none
	LogDir string // directory for the output of programs and console; "": none

	Doing func(what string)        // called with the current step; "": the first test, or the user's shell, begins
	Ended func(p *results.Program) // called with the results of each program
}

// Check returns an error that names the flag of a wrong option; nil: it finds none.
func (o *Options) Check() error {
	m, known := lab.LookupModel(o.NIC)
	switch {
	case o.Device != "" && devices[o.Device] == nil:
		return fmt.Errorf("--device %s: %s", o.Device, strings.Join(slices.Sorted(maps.Keys(devices)), ", "))
	case !known:
		return lab.UnknownModel(o.NIC)
	case o.IOMMU && (o.Device != "" || !m.VFIOUser):
		return fmt.Errorf("--iommu is for --nic %s: QEMU has no other NIC of this command's behind its IOMMU", lab.GVE)
	case o.MTU < lab.MinMTU || o.MTU > m.MaxMTU:
		return fmt.Errorf("--mtu %d: %d to %d", o.MTU, lab.MinMTU, m.MaxMTU)
	case o.MaxMTU < o.MTU || o.MaxMTU > m.MaxMTU:
		return fmt.Errorf("--max-mtu %d: %d (--mtu) to %d", o.MaxMTU, o.MTU, m.MaxMTU)
	case o.RSCUsecs < 0 || o.RSCUsecs > lab.MaxRSCUsecs:
		return fmt.Errorf("--rsc-usecs %d: microseconds, 0 to %d", o.RSCUsecs, lab.MaxRSCUsecs)
	case o.Queues < 1 || o.Queues > lab.MaxQueuePairs:
		return fmt.Errorf("--queues %d: 1 to %d", o.Queues, lab.MaxQueuePairs)
	case o.Device != "" && o.Queues != DefaultQueues:
		return errors.New("--queues and --device: a NIC of QEMU's has one queue")
	case o.XDP && (o.NIC != lab.Virtio || o.Device != ""):
		return errors.New("--xdp: of --nic virtio: no other NIC needs anything for native XDP")
	case o.Sabotage != nil && o.Device != "":
		return errors.New("--sabotage and --device: a NIC of QEMU's has no faults of ours")
	case o.Timeout <= 0:
		return fmt.Errorf("--timeout %v: more than 0", o.Timeout)
	case o.Repeat < 0:
		return fmt.Errorf("--repeat %d: 1 or more", o.Repeat)
	case o.Source != "" && o.Tests != "":
		return errors.New("--tests and --source: one of them: --source builds all tests of a tree, --tests replaces files")
	}
	return nil
}

// event calls Doing when a case of a program begins or ends.
func (o *Options) event(p *program, column results.Column, e ktap.Event) {
	what := p.name + column.Suffix()
	switch e.Kind {
	case ktap.Begun:
		what += fmt.Sprintf(": case %d", e.Case.Number)
		if e.N > 0 {
			what += fmt.Sprintf(" of %d", e.N)
		}
		if e.Case.Name != "" {
			what += ", " + e.Case.Name
		}
		o.Doing(what)
	case ktap.Ended:
		o.Doing(what + ": " + e.Case.Name + ": " + string(e.Case.Result))
	}
}
