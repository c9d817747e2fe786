package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"vnic.dev/vnic/internal/job/selftest"
	"vnic.dev/vnic/internal/job/selftest/expect"
	kreport "vnic.dev/vnic/internal/job/selftest/report"
	kselftest "vnic.dev/vnic/internal/job/selftest/results"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/live"
	"vnic.dev/vnic/internal/machine/assets"
	"vnic.dev/vnic/internal/nic/sabotage"
	"vnic.dev/vnic/internal/report/show"
)

type selftestFlags struct {
	verbose, list, asJSON, table bool
	junit, fault                 string
	seed                         uint64 // seed of the fault
	options                      selftest.Options
}

func selftestCommand() *cobra.Command {
	x := selftestFlags{options: selftest.Options{NIC: lab.GVE,
		NICOptions: lab.NICOptions{MTU: 1500, MaxMTU: 9000, RSCUsecs: 80000},
		Queues:     selftest.DefaultQueues, Timeout: time.Duration(limits.Selftest), Repeat: 1}}
	c := &cobra.Command{
		Use:   "selftest [flags] [PROGRAM[:CASE]...]",
		Short: "Run the Linux kernel's own driver selftests on the NIC",
		Long: `Run the kernel's own driver selftests (tools/testing/selftests/drivers/net, and its hw) in a guest with two NICs on
one switch, the second one in a network namespace as the remote end. They are built from the source that Debian has of
the guest's kernel, on a root file system of Debian packages: about 400 MB are downloaded once, nothing is installed,
and root is not needed. Without a name all programs run that are for a NIC of this kind.

Each program finds the interfaces as their driver leaves them. What the kernel complains about is shown with its trace
and the case that caused it, and after an oops the next program gets a fresh boot. Of programs of device memory the
NIC's counters say whether payload went there.

The exit status is 0 if all results are those that are expected of this model with this kernel: what does not pass has
a reason there, with evidence. What comes of a series of kernels of which nothing is written down is new, and no
failure.`,
		Example: `  vnic selftest                                all, on the gVNIC
  vnic selftest --nic virtio                   all, on virtio-net
  vnic selftest hw/devmem.py hw/csum.py        two programs
  vnic selftest ntuple:queue.tcp_ipv4          one case; a pattern in quotes: 'csum:ipv4_*'
  vnic selftest --patch-tests hw/ntuple.py     and with the patches for NICs without combined channels
  vnic selftest --device virtio-net-pci        the same on QEMU's own NIC, to compare
  vnic selftest --kernel bzImage --modules lib/modules/7.2.0 --source . hw/devmem.py   a kernel of your own
  vnic selftest --tests ~/linux/tools/testing/selftests --shell hw/csum.py   tests of your own; a shell where they fail`,
		RunE: x.run,
	}
	x.flags(c.Flags())
	return c
}

func (x *selftestFlags) flags(f *pflag.FlagSet) {
	o := &x.options
	f.StringVar(&o.NIC, "nic", o.NIC, "gve, which needs QEMU "+assets.MinVFIOUser+"; or virtio")
	f.StringVar(&o.Device, "device", "", "a NIC of QEMU's own in place of --nic: virtio-net-pci, vmxnet3 or e1000e, with "+
		"one queue")
	f.BoolVar(&x.list, "list", false, "list the programs, or the cases of those that are named")
	f.BoolVar(&o.Patched, "patch-tests", false,
		"programs that assume what not all NICs have run with vnic's patches, too, in a column of their own")
	f.StringVar(&o.Source, "source", "", "a kernel's tree, whose tests are built and run")
	f.StringVar(&o.Tests, "tests", "",
		"a directory laid out as tools/testing/selftests, whose .py and .sh files take the place of the tests'")
	f.BoolVar(&o.Shell, "shell", false, "at the first failure a shell in the guest, with NETIF and the like set")
	f.IntVar(&o.Repeat, "repeat", o.Repeat, "how often all is run")
	f.DurationVar(&o.Timeout, "timeout", o.Timeout, "for each program")
	machineFlags(f, &o.Accel)
	iommuFlag(f, &o.IOMMU)
	f.IntVar(&o.MTU, "mtu", o.MTU, "MTU of both ends")
	f.IntVar(&o.MaxMTU, "max-mtu", o.MaxMTU, "MTU to which tests can raise theirs")
	f.IntVar(&o.RSCUsecs, "rsc-usecs", o.RSCUsecs,
		"microseconds for which received frames of a TCP flow may wait for more of it, as the tests of hardware GRO want it")
	f.BoolVar(&o.XDP, "xdp", false, "a virtio NIC that offloads nothing to receive, so that its driver takes native XDP "+
		"programs")
	f.IntVar(&o.Queues, "queues", o.Queues, "pairs of queues of each NIC; what is expected is that of 4")
	f.StringVar(&x.fault, "sabotage", "",
		"make the NIC that is tested with a fault, to see which test sees it: a name, with /N for 1 frame of N, or list "+
			"(docs/sabotage.md)")
	f.Uint64Var(&x.seed, "seed", 1, "which frames --sabotage hits")
	f.IntVar(&o.GDB, "gdb", 0, "port of 127.0.0.1 for a gdb that looks at the guest's kernel")
	f.StringVar(&o.LogDir, "log", "", "directory for what each program prints, and the guest's console")
	sourceFlags(f, &o.Fetch)
	f.BoolVar(&x.asJSON, "json", false, "print one JSON object (its schema: docs/selftest.md)")
	f.StringVar(&x.junit, "junit", "", "file for the results as JUnit's XML")
	f.BoolVar(&x.table, "table", false, "run nothing: the arguments are files of --json, and are shown side by side, in "+
		"Markdown")
	f.BoolVarP(&x.verbose, "verbose", "v", false, "log what happens")
}

func (x *selftestFlags) run(c *cobra.Command, args []string) error {
	o := &x.options
	o.Programs = args
	if x.table && len(args) == 0 {
		return usagef(c, "--table: which files? vnic selftest --json writes them")
	}
	if x.table {
		return show.Text(c.OutOrStdout(), func(w io.Writer) error { return kreport.Files(w, args) })
	}
	if x.fault == "list" {
		_, err := fmt.Fprint(c.OutOrStdout(), sabotage.Table())
		return err
	}
	if x.fault != "" || c.Flags().Changed("sabotage") {
		f, err := sabotage.Parse(x.fault)
		if err != nil {
			return usagef(c, "--sabotage %v", err)
		}
		o.Sabotage = f.NIC(x.seed)
	}
	if err := o.Check(); err != nil {
		return misuse(c, err)
	}
	xml, err := live.OpenDraft("junit:", x.junit)
	if err != nil {
		return err
	}
	defer xml.Close()
	ui := show.New(c.ErrOrStderr(), false)
	defer ui.Done()
	o.Log = ui.Fetching(&o.Fetch, x.verbose)
	o.Note, o.Doing = ui.Note, ui.Doing
	o.Stdin, o.Stdout, o.Stderr = os.Stdin, c.OutOrStdout(), c.ErrOrStderr()
	if x.list {
		names, err := selftest.List(c.Context(), o)
		ui.Done()
		printed := show.Text(c.OutOrStdout(), func(w io.Writer) error {
			_, err := io.WriteString(w, strings.Join(append(names, ""), "\n"))
			return err
		})
		return errors.Join(printed, misuseIf[*selftest.UsageError](c, err))
	}
	o.Ended = func(p *kselftest.Program) { ui.Note("%s", selftest.Line(p)) }
	res, err := selftest.Do(c.Context(), o)
	ui.Done()
	if res == nil || len(res.Programs) == 0 {
		return misuseIf[*selftest.UsageError](c, err)
	}
	status, rerr := reportSelftest(c, res, x.asJSON, xml)
	if err = errors.Join(misuseIf[*selftest.UsageError](c, err), rerr); err == nil && status != 0 {
		return exitStatus(status)
	}
	return err
}

func reportSelftest(c *cobra.Command, res *kselftest.Run, asJSON bool, xml *live.Draft) (status int, err error) {
	j, err := expect.Judge(res)
	if err != nil {
		return 1, err
	}
	if asJSON {
		err = show.Encoded(c.OutOrStdout(), func(w io.Writer) error { return kreport.JSON(w, res, j) })
	} else {
		err = show.Text(c.OutOrStdout(), func(w io.Writer) error { return kreport.Table(w, res, j) })
	}
	if xml != nil {
		var text bytes.Buffer
		if jerr := kreport.JUnit(&text, res, j); jerr != nil {
			return 1, errors.Join(err, jerr)
		}
		err = errors.Join(err, xml.Commit(text.Bytes()))
	}
	return j.Status(), err
}
