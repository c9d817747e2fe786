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

// DefaultQueues is how many pairs of queues a NIC has for which expectations are written down.
const DefaultQueues = 4

// Options says what is run.
type Options struct {
	session.Common
	lab.NICOptions // MTU is that of both ends' interfaces

	NIC      string        // lab.GVE or lab.Virtio
	Device   string        // of devices: a NIC of QEMU's own in place of ours; "": ours
	Programs []string      // PROGRAM or PROGRAM:CASE; none: all that are for a NIC like ours
	Queues   int           // pairs of queues of each NIC; expectations are of DefaultQueues
	Sabotage *nic.Sabotage // a fault of the NIC that is tested; nil: none
	IOMMU    bool          // the guest's kernel translates what the NICs address
	Timeout  time.Duration // of a program
	Repeat   int           // how often all is run; 0: 1

	Source  string // a kernel's tree, whose tests are built; "": the package of the guest kernel's series
	Tests   string // a directory with files that take the place of tests'; "": none
	Patched bool   // programs that the patch series changes are run with it, too

	Shell  bool // a shell in the guest at the first failure, which ends the run
	Stdin  *os.File
	Stdout io.Writer // of the shell
	Stderr io.Writer
	GDB    int    // port of QEMU's gdb server; 0: none
	LogDir string // directory for what programs print, and the guest's console; "": none

	Doing func(what string)        // what goes on; "": tests begin
	Ended func(p *results.Program) // a program has ended
}

// Check returns an error if an option is wrong, in the words of the user's flags.
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

// event shows the progress of a program.
func (o *Options) event(p *program, column results.Column, e ktap.Event) {
	what := p.name
	if column != results.Unmodified {
		what += " (" + string(column) + ")"
	}
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
