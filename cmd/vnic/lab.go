package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/lab/labfile"
	"vnic.dev/vnic/internal/lab/pcie/host"
	"vnic.dev/vnic/internal/machine/assets"
	"vnic.dev/vnic/internal/machine/qemu"
	"vnic.dev/vnic/internal/memavail"
	"vnic.dev/vnic/internal/report/labshow"
	"vnic.dev/vnic/internal/report/show"
	"vnic.dev/vnic/internal/report/stat"
	"vnic.dev/vnic/internal/spare"
)

func labFlag(f *pflag.FlagSet, name *string) {
	f.StringVar(name, "lab", "", "lab file with all guests, or preset: "+strings.Join(labfile.Presets(), ", ")+
		" (vnic lab show; instead of flags that say the same)")
}

// gpuDriverFlag adds --gpu-driver and --headers.
func gpuDriverFlag(f *pflag.FlagSet, name *string, o *assets.Options) {
	set := func(s string) error {
		if s != lab.DriverNode && s != lab.DriverVNICGPU {
			return errors.New(lab.DriverNode + " or " + lab.DriverVNICGPU)
		}
		*name = s
		return nil
	}
	f.Var(textFlag{"string", func() string { return *name }, set}, "gpu-driver",
		"node: no driver, GPU memory is a NUMA node's where the NIC is gve; or vnicgpu: a kernel module, to which GPUs are "+
			"PCI devices, so that Linux decides which NIC reaches which (default: as the lab file has it, else node)")
	headersFlag(f, o)
}

func headersFlag(f *pflag.FlagSet, o *assets.Options) {
	f.StringVar(&o.Headers, "headers", "", "build tree of --kernel, or its headers, to build vnicgpu with ($"+
		assets.EnvHeaders+"; else as --modules links to them, else Debian's of the kernel's version, fetched)")
}

func iommuFlag(f *pflag.FlagSet, on *bool) {
	f.BoolVar(on, "iommu", false,
		"the guests' kernels translate the addresses that NICs use, by an IOMMU of QEMU's: a map for each buffer; --nic gve")
}

func driverNeedsKernel(c *cobra.Command, name string, inProc bool) error {
	if inProc && name == lab.DriverVNICGPU {
		return usagef(c, "--gpu-driver %s is of guests in QEMU: --guest inproc has no kernel", name)
	}
	return nil
}

// setDrivers sets the guests' driver unless it is "", and their IOMMU if iommu is set.
func setDrivers(l *labfile.Lab, driver string, iommu bool) {
	for i := range l.Guests {
		g := &l.Guests[i]
		g.Driver, g.IOMMU = cmp.Or(driver, g.Driver), g.IOMMU || iommu
	}
}

// readLab reads a lab file or preset, or standard input for "-". A *labfile.Error becomes a usage error.
func readLab(c *cobra.Command, name string) (*labfile.Lab, error) {
	if st, err := os.Stat(name); name == "-" || err == nil && !st.Mode().IsRegular() {
		spare.JobBegins() // a spare process could not read a pipe again
	}
	l, err := labfile.Load(name, os.Stdin)
	return l, misuseIf[*labfile.Error](c, err)
}

// loadLab reads a lab file. It refuses the flags in flags and others in whose place the file stands, and returns an
// error if less memory is available than memory returns for the lab. It also sets --accel (accelOf).
func loadLab(c *cobra.Command, name string, memory func(*labfile.Lab) uint64, flags ...string) (*labfile.Lab, error) {
	flags = append(flags, "memory", "gpu-memory")
	options := pflag.NewFlagSet("", pflag.ContinueOnError)
	nicFlags(options, new(lab.NICOptions))
	options.VisitAll(func(f *pflag.Flag) { flags = append(flags, f.Name) })
	for _, x := range lab.Impairments() {
		if x.Flag != "" {
			flags = append(flags, x.Key)
		}
	}
	refuse := func(flags ...string) error {
		if i := slices.IndexFunc(flags, c.Flags().Changed); i >= 0 {
			return usagef(c, "--lab and --%s: the lab file says that", flags[i])
		}
		return nil
	}
	if err := refuse(flags...); err != nil {
		return nil, err
	}
	l, err := readLab(c, name)
	if err == nil && l.Gateway != "" {
		err = refuse("gateway", "no-gateway")
	}
	if err != nil {
		return nil, err
	}
	accelOf(c, l)
	return l, enough(name, memory(l))
}

// accelOf sets --accel to the lab file's value, if it has one, unless the user has set the flag or its environment
// variable.
func accelOf(c *cobra.Command, l *labfile.Lab) {
	f := c.Flags().Lookup("accel")
	if l.Accel == "" || f == nil || f.Changed || os.Getenv(qemu.EnvAccel) != "" {
		return
	}
	_ = f.Value.Set(l.Accel) // labfile has checked the value
	if f.Value.String() != "auto" {
		spare.JobBegins() // no spare process may repeat the job with TCG
	}
}

func withRAM(l *labfile.Lab) uint64 { return l.Memory(true) }

func withoutRAM(l *labfile.Lab) uint64 { return l.Memory(false) }

func enough(name string, memory uint64) error {
	if err := memavail.Enough(memory, "/"); err != nil {
		return fmt.Errorf("--lab %s: its guests and GPUs: %w", name, err)
	}
	return nil
}

func sow(l *labfile.Lab, seed uint64) {
	if l.Seed != nil {
		seed = *l.Seed
	}
	l.Sow(seed)
}

// seedLinks gives links that do anything by chance a random seed, and notes it, unless the user or the lab file has
// given a seed.
func seedLinks(c *cobra.Command, l *labfile.Lab, im *lab.Impairment, note func(format string, args ...any)) {
	drawn := uint64(rand.Uint32())
	lossy := im.Lossy() && !c.Flags().Changed("seed")
	if l != nil {
		lossy = l.Lossy() && l.Seed == nil
		sow(l, drawn)
	}
	if lossy {
		note("what links do by chance: seed %d", drawn)
		im.Seed = drawn
	}
}

func labCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "lab",
		Short: "Look at a description of guests, NICs, GPUs and PCIe trees",
		Args:  cobra.NoArgs,
		RunE:  func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(labShowCommand(), labSetCommand())
	return c
}

func labShowCommand() *cobra.Command {
	var tree, schema, fromHost bool
	c := &cobra.Command{
		Use:   "show [flags] [FILE|PRESET]",
		Short: "Print a lab file with all that it does not say, its PCIe trees, or this machine's",
		Long: `Print a lab file, or a preset, with all that it does not say filled in; or with --tree the PCIe trees of
its guests, and how each NIC reaches the memory of each GPU: by Linux's rule (drivers/pci/p2pdma.c), and
with the words of nvidia-smi topo. - is standard input. Presets are:
` + indented(labfile.Presets()),
		Example: `  vnic lab show pair                    a file to begin with
  vnic lab show --tree a3-high          what is below what, and who reaches whom
  vnic lab show --from-host             the same of this machine's own NICs and GPUs
  vnic lab show --schema > lab.json     for an editor: JSON schema of lab files`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			out := c.OutOrStdout()
			switch {
			case fromHost && (len(args) > 0 || schema):
				return usagef(c, "--from-host is of this machine: neither a lab file nor --schema goes with it")
			case schema && (len(args) > 0 || tree):
				return usagef(c, "--schema is that of all lab files: neither a file nor --tree goes with it")
			case !fromHost && !schema && len(args) == 0:
				return usagef(c, "name a lab file, or a preset: %s", strings.Join(labfile.Presets(), ", "))
			case schema:
				_, err := out.Write(labfile.Schema())
				return err
			case fromHost:
				m, err := host.Read("/proc", "/sys")
				if err != nil {
					return err
				}
				return show.Text(out, func(w io.Writer) error { return labshow.Host(w, m) })
			}
			l, err := readLab(c, args[0])
			if err != nil {
				return err
			}
			if tree {
				return show.Text(out, func(w io.Writer) error { return labshow.Lab(w, l) })
			}
			b, err := l.YAML()
			if err == nil {
				err = show.Text(out, func(w io.Writer) error { _, err := w.Write(b); return err })
			}
			return err
		},
	}
	f := c.Flags()
	f.BoolVar(&tree, "tree", false, "PCIe trees, and how NICs reach the memory of GPUs")
	f.BoolVar(&fromHost, "from-host", false, "this machine's own tree")
	f.BoolVar(&schema, "schema", false, "the JSON schema of lab files")
	return c
}

func labSetCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "set [PID] link|nic|gpu NAME KEY=VALUE...|remove",
		Short: "Change what links, NICs and GPUs of a running vnic do",
		Long: `Change links, NICs and GPUs of a running vnic from now on, for packets that are under way, too. A fault of a link
applies to what its NIC's guest sends; 0, or off, ends it. Names are those of lab files (a.nic0), or as vnic stat
shows them (port0).
` + faultsHelp(),
		Example: `  vnic lab set link a.nic0 loss=1% delay=10ms
  vnic lab set 1234 link a.nic0 state=down
  vnic lab set nic a.nic0 p2p=off
  vnic lab set gpu a.gpu0 remove`,
		RunE: func(c *cobra.Command, args []string) error {
			var pid []string
			if len(args) > 0 && strings.IndexFunc(args[0], func(r rune) bool { return r < '0' || r > '9' }) < 0 {
				pid, args = args[:1], args[1:]
			}
			what, err := lab.ParseChange(strings.Join(args, " "))
			if err != nil {
				return misuse(c, err)
			}
			snap, err := statOf(c, pid)
			if err != nil {
				return err
			}
			return stat.Change(c.Context(), snap.PID, what)
		},
	}
}

func faultsHelp() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	kind := ""
	for _, f := range lab.Faults() {
		if f.Kind != kind {
			kind = f.Kind
			fmt.Fprintf(w, "\n%s:\n", kind)
		}
		fmt.Fprintf(w, "  %s\t%s\n", f.Words(), f.Help)
	}
	_ = w.Flush()
	return b.String()
}
