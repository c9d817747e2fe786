package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"vnic.dev/vnic/internal/broker"
	"vnic.dev/vnic/internal/job/boot"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/live"
	"vnic.dev/vnic/internal/machine/assets"
	"vnic.dev/vnic/internal/machine/assets/toolimage"
	"vnic.dev/vnic/internal/machine/qemu"
	"vnic.dev/vnic/internal/report/show"
)

// exitStatus is an error with which vnic exits with this status, and prints no message. An interrupt or --timeout has
// priority.
type exitStatus int

func (s exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

type bootFlags struct {
	verbose          bool
	labName, account string
	live             live.Command
	options          boot.Options
}

func bootCommand() *cobra.Command {
	x := bootFlags{live: live.New("boot"), options: boot.Options{Memory: 512 << 20, GPUMemory: 256 << 20}}
	c := &cobra.Command{
		Use:   "boot [flags] [-- COMMAND ARGS...]",
		Short: "Boot a guest of your own, with NIC and GPU memory, and run a program in it",
		Long: `Boot a guest of your own, with NIC and GPU memory, and run a program in it. The program comes from this
machine with its libraries, to the same place in the guest; its streams are the command's, and so is its
exit status (128 and more: a signal). When stdin, stdout and stderr are a terminal, it has one too: Ctrl-] q
leaves, also while the guest boots or hangs, Ctrl-] Ctrl-] sends one Ctrl-], and Ctrl-] ? says so.
A script comes with its interpreter; python and perl with their own library, but nothing that is installed
beside it (--copy). Without a command there is a shell, with these tools of this machine, as far as it has them:
` + indented(boot.Tools) + `
Behind these, in /bbin, every guest has u-root's commands, and its sh where this machine's has not come.

--tools brings Debian packages along: net is ethtool of the kernel's generation, tcpdump, iperf3 and ping;
python is python3-minimal (python3 has all modules); ncdevmem is built of the kernel's source (400 MB to
download); any other name is a package. They are fetched once, and have their own libraries; in PATH they
come before this machine's programs.

In the guest, eth0 is the kernel's. guest0, guest1, ... are names of the guests; gateway leads to this
machine: its address is this machine's loopback, as far as --host-ports says, and TCP and UDP to anywhere
else goes out by this machine's sockets, but to link-local addresses and clouds' metadata (--allow).

A program that does device memory TCP opens $VNIC_DEVICE and gives it the address $VNIC_ADDR (guest1's is
the name guest1-devmem); the Go package vnic.dev/vnic/guest does that. devmem is such a program, netcat,
and always there. $VNIC_INDEX and $VNIC_GUESTS say which guest it is.

With --nic gve a program in any language can use Linux's own devmem sockets on eth0, with its addresses.
Its GPU memory comes from the socket $VNIC_GPU (AF_UNIX, SOCK_SEQPACKET): send a size in bytes, a
uint64_t, and receive an int, 0 or an errno, with a dma-buf as SCM_RIGHTS: for bind-rx, bind-tx and mmap.
The NIC takes that memory for the GPU's until the program closes the socket or ends. Example, sender and
receiver in C: devmem.c, in share/doc/vnic/examples beside bin, and in guest/docs of the source.`,
		Example: `  vnic boot                                   a shell
  vnic boot -- ./test --all                   a program, its status is vnic's
  vnic boot --nic gve -- ip address           on the kernel's own devmem TCP
  vnic boot --guests 2 -- ./test              two guests on one switch; $VNIC_INDEX is 0 and 1
  vnic boot --lab a3-high -- sh -c env        guests with 4 NICs and 8 GPUs each: vnic lab show a3-high
  vnic boot --tools net,strace -- ethtool -i eth0
  vnic boot --kernel bzImage --modules lib    a kernel of your own
  vnic boot --copy data:/data -- ls -l /data  with files
  vnic boot --guests 2 --end first-failure --timeout 10m -- ./test   for CI`,
		Args: programArgs,
		RunE: x.run,
	}
	x.flags(c.Flags())
	return c
}

func (x *bootFlags) flags(f *pflag.FlagSet) {
	o, l := &x.options, &x.live
	labFlag(f, &x.labName)
	f.StringVar(&o.NIC, "nic", lab.Virtio,
		"virtio; or gve, whose devmem TCP is the kernel's, and which needs QEMU "+assets.MinVFIOUser)
	f.IntVar(&o.Guests, "guests", 1, "how many guests; the command runs in all of them")
	f.StringArrayVar(&o.Copies, "copy", nil,
		"HOST:GUEST, a file or directory for the guests, libraries included; HOST alone: to the same place")
	f.StringArrayVar(&o.Env, "env", nil, "NAME=VALUE for the program's environment; NAME alone: its value here")
	toolsFlag(f, &o.Tools)
	f.IntVar(&o.CPUs, "cpus", 1, "CPUs of each guest")
	f.Var((*bytesFlag)(&o.Memory), "memory", "RAM of each guest")
	f.Var((*bytesFlag)(&o.GPUMemory), "gpu-memory", "memory of each GPU, a power of two; 0: no GPUs")
	gpuDriverFlag(f, &o.GPUDriver, &o.Fetch)
	iommuFlag(f, &o.IOMMU)
	nicFlags(f, &o.NICOptions)
	flowsFlag(f, &o.Flows, "it is printed at the end, and by 'vnic stat' before")
	f.StringVar(&x.account, "json", "", "also write that account, when all guests have ended, to this file")
	impairFlags(f, &o.Impair)
	impairSeedFlag(f, &o.Impair)
	f.StringArrayVar(&o.Forwards, "forward", nil, "[tcp:|udp:]HOSTPORT:[guestN:]GUESTPORT, from 127.0.0.1 here to a guest")
	gatewayFlags(f, &o.GatewayFlags, boot.HostPorts)
	f.BoolVar(&o.NoGateway, "no-gateway", false, "nothing on the switch but the guests: as --gateway off")
	uplinkFlag(f, &l.Uplinks)
	allowMACFlag(f, &o.AllowMAC, "only the NIC's own")
	stormFlag(f, &o.Storm)
	sandboxFlag(f, &l.Sandbox)
	f.StringVar(&o.End, "end", boot.EndAll, "of several guests: "+boot.EndAll+", when all programs have ended; or "+
		boot.EndFirstFailure+", when one has failed: its status is vnic's")
	machineFlags(f, &o.Accel)
	timeoutFlag(f, &o.Timeout)
	f.StringVar(&o.Append, "append", "", "words for the kernel's command line")
	f.StringArrayVar(&o.QEMUArgs, "qemu-arg", nil, "an argument for QEMU; once for each")
	f.IntVar(&o.GDB, "gdb", 0, "port at 127.0.0.1 for gdb, the second guest's is the next (--qemu-arg -S waits for it)")
	l.Dump.Flags(f)
	metricsFlag(f, &l.Show)
	l.Page.Flags(f)
	f.StringVar(&o.LogDir, "log-dir", "", "directory for the guests' consoles, with their kernels' logs: "+
		"console-guest0.log, ... (--append loglevel=4: its errors alone, which is sooner)")
	sourceFlags(f, &o.Fetch)
	f.BoolVarP(&x.verbose, "verbose", "v", false, "log what happens")
}

func (x *bootFlags) run(c *cobra.Command, args []string) error {
	o, l := &x.options, &x.live
	o.Command = args
	if o.End == "" {
		o.End = "''" // the flag was given with an empty value, which Check must refuse
	}
	if x.labName != "" {
		file, err := loadLab(c, x.labName, withRAM, "nic", "guests", "cpus", "seed", "uplink")
		if err != nil {
			return err
		}
		setDrivers(file, o.GPUDriver, o.IOMMU)
		l.Uplinks = file.UplinksOf("")
		if err := o.Take(file); err != nil {
			return misuse(c, err)
		}
	}
	if l.Dump.File == "-" {
		return usagef(c, "--pcap -: stdout is the program's: name a file")
	}
	if err := errors.Join(l.Check(), o.Check(), l.Dump.Check(false), checkFlows(o.Flows)); err != nil {
		return misuse(c, err)
	}
	ui := show.New(c.ErrOrStderr(), false)
	ui.Times = x.verbose
	defer ui.Done()
	o.Log = ui.Fetching(&o.Fetch, x.verbose)
	o.Note, o.Doing = ui.Note, ui.Doing
	o.Stdin, o.Stdout, o.Stderr = os.Stdin, c.OutOrStdout(), c.ErrOrStderr()
	seedLinks(c, o.Lab, &o.Impair, ui.Note)
	file := l.File("json", x.account)
	l.More = broker.Terminal
	return l.Run(c, &o.Common, o.BrokerConfig, func(ctx context.Context) error {
		var accel qemu.Accel
		o.Booted = func(a qemu.Accel) { accel = a }
		status, err := boot.Do(ctx, *o)
		if r := l.Capture.Report(); r != nil && (r.Missed > 0 || x.verbose) {
			ui.Note("%v", r)
		}
		err = errors.Join(err, live.TellFlows(c.ErrOrStderr(), l.Counters.Last(), accel, file))
		if err == nil && status != 0 {
			return exitStatus(status)
		}
		return misuseIf[*boot.UseError](c, err)
	})
}

func programArgs(c *cobra.Command, args []string) error {
	if n := c.ArgsLenAtDash(); n > 0 || n < 0 && len(args) > 0 {
		return fmt.Errorf("unknown command %q: a program for the guest stands behind --", args[0])
	}
	return nil
}

func indented(words []string) string {
	var b strings.Builder
	line := " "
	for _, w := range words {
		if len(line)+len(w) > 110 {
			b.WriteString(line + "\n")
			line = " "
		}
		line += " " + w
	}
	return b.String() + line + "\n"
}

func toolsFlag(f *pflag.FlagSet, list *string) {
	f.StringVar(list, "tools", toolimage.None,
		"none; or Debian packages for the guests: net (ethtool, tcpdump, iperf3, ping), python, ncdevmem, PACKAGE,...")
}
