package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/gpufd"
	"vnic.dev/vnic/internal/job/image"
	"vnic.dev/vnic/internal/job/serve"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/live"
	"vnic.dev/vnic/internal/machine/assets"
	"vnic.dev/vnic/internal/machine/qemu"
	"vnic.dev/vnic/internal/report/show"
	"vnic.dev/vnic/internal/version"
)

const capabilitiesFlag = "--print-capabilities"

const memoryMaxFlag = "print-memory-max"

// backendArgs returns the arguments behind the program's name. It puts serve before them if the program was started by
// the backend's name.
func backendArgs(args []string) []string {
	if filepath.Base(args[0]) == serve.BackendName {
		return append([]string{"serve"}, args[1:]...)
	}
	return args[1:]
}

// asksCapabilities reports whether args are vnic serve's with --print-capabilities: "other options and arguments
// should be ignored" then (vhost-user.rst, "Backend program conventions").
func asksCapabilities(args []string) bool {
	return len(args) > 0 && args[0] == "serve" && slices.Contains(args, capabilitiesFlag)
}

type serveFlags struct {
	paths                         []string
	labName, p2p, imageDir        string
	ports                         int
	asJSON, verbose, capabilities bool
	guestRAM                      uint64
	live                          live.Command
	options                       serve.Options
}

func serveCommand() *cobra.Command {
	x := serveFlags{p2p: "on", live: live.New("serve"), options: serve.Options{GPUMemory: 256 << 20}}
	c := &cobra.Command{
		Use:   "serve",
		Short: "Serve NICs, with their GPUs, to a QEMU of your own",
		Long: `Serve NICs, with their GPUs, to a QEMU of your own, until interrupted. It prints commands to paste: a QEMU
for each port and, of several, one that has all. They boot what 'vnic image build' has made (--image).

A QEMU that hangs up may be followed by the next, and finds the GPU's memory as it was; a vnic that is
started anew has new GPUs, so start QEMU anew as well: it warns of a QEMU that has memory of an earlier
one. With --json a QEMU's arguments are the "qemu" of a port or of a guest, or "all_ports", and behind them
those of "boot", without which it boots nothing. A gateway gives guests addresses by DHCP, names, and a way
out: port0, port1, ... are guests, gateway is this machine, of which --host-ports says what they reach. For
management software vnic serve keeps to QEMU's conventions of backend programs.`,
		Example: `  vnic serve --socket-path $XDG_RUNTIME_DIR/vnic.sock                        one virtio NIC
  vnic serve --socket-path $XDG_RUNTIME_DIR/vnic%d.sock --ports 2            two on one switch
  vnic serve --socket-path $XDG_RUNTIME_DIR/vnic.sock --nic gve              a gVNIC, by vfio-user
  vnic serve --socket-path $XDG_RUNTIME_DIR/vnic%d.sock --ports 64 --gpu-memory 0
  vnic serve --socket-path $XDG_RUNTIME_DIR/%s.sock --lab a3-high            a.nic0.sock, a.nic1.sock, ...
  vnic serve --socket-path $XDG_RUNTIME_DIR/vnic.sock --image guest          with what vnic image build has made
  vnic serve --socket-path $XDG_RUNTIME_DIR/vnic.sock --client               QEMU listens, with server=on
  vnic serve --socket-path $XDG_RUNTIME_DIR/vnic.sock --forward 2222:22      ssh -p 2222 localhost leads to the guest
  vnic serve --socket-path $XDG_RUNTIME_DIR/vnic.sock --json                 the same as one JSON object, for scripts`,
		Args: cobra.NoArgs,
		RunE: x.run,
	}
	x.flags(c.Flags())
	return c
}

func (x *serveFlags) flags(f *pflag.FlagSet) {
	o, l := &x.options, &x.live
	f.StringArrayVar(&x.paths, "socket-path", nil,
		"socket to listen at; once for each port, or with %d for the port's number, with --lab with %s for the NIC's name")
	labFlag(f, &x.labName)
	f.StringVar(&x.imageDir, "image", "", "directory of 'vnic image build' that the printed commands boot; none: nothing "+
		"(default: ./"+image.DefaultDir+", if it is one for such a NIC)")
	f.IntVar(&x.ports, "ports", 0, "how many NICs, with %d in --socket-path")
	f.IntSliceVar(&o.FDs, "fd", nil,
		"socket that is open already, connected or listening (default: those of systemd's LISTEN_FDS)")
	f.BoolVar(&o.Client, "client", false, "connect to --socket-path, where QEMU listens (server=on)")
	f.StringVar(&o.Group, "socket-group", "",
		"also let members of a group connect (default: nobody but this user and root); beside each port's socket there is "+
			"one, with "+gpufd.Suffix+" at its end, where 'vnic gpu-fd' gets the GPU's memory for their QEMU")
	f.BoolVar(&x.capabilities, capabilitiesFlag[2:], false,
		"print the capabilities as management software wants them, and nothing else")
	f.Var((*bytesFlag)(&x.guestRAM), memoryMaxFlag,
		"print the memory limit of a systemd unit with these flags, when each guest has that much RAM, and nothing else")
	f.StringVar(&o.NIC.Model, "nic", lab.Virtio,
		"virtio, by vhost-user; or gve, by vfio-user, which needs QEMU "+assets.MinVFIOUser)
	f.Var((*bytesFlag)(&o.GPUMemory), "gpu-memory", "memory of each NIC's GPU, a power of two; 0: no GPUs")
	f.Var((*bytesFlag)(&o.Memory), "frontend-memory",
		"end the connection of a QEMU whose memory occupies more than that, what it has unmapped included, looked at twice "+
			"a second: its guest's RAM and a little more (default 0: no bound)")
	f.IntVar(&o.NIC.QueuePairs, "queues", 0,
		"queue pairs of each NIC; of gve its driver may have twice as many, as for XDP (default: virtio 2, gve 4)")
	nicFlags(f, &o.NIC.NICOptions)
	f.IntVar(&o.Poll, "poll", 0,
		"threads that look at the rings of all NICs, virtio's, without waiting for kicks: for drivers that poll, as DPDK's "+
			"do; each takes a processor, on which no QEMU should run (default 0: a thread sleeps at each ring)")
	f.BoolVar(&o.Hot, "hot", false, "threads of --poll never sleep (default: after 1 ms without a frame)")
	flowsFlag(f, &o.Flows, "'vnic stat' shows it")
	impairFlags(f, &o.Impair)
	impairSeedFlag(f, &o.Impair)
	f.StringVar(&x.p2p, "p2p", x.p2p, "on, or off: the NICs cannot reach the GPUs, payload goes through host memory")
	gatewayFlags(f, &o.GatewayFlags, serve.HostPorts)
	f.BoolVar(&o.NoGateway, "no-gateway", false,
		"nothing on the switch but the NICs: no DHCP, no DNS, no way to this machine's network; as --gateway off")
	f.StringArrayVar(&o.Forwards, "forward", nil,
		"lead a port of this machine's loopback to a guest: [tcp:|udp:]HOSTPORT:[portN:]GUESTPORT, with --lab [guestN:]")
	uplinkFlag(f, &l.Uplinks)
	allowMACFlag(f, &o.AllowMAC, "only that of the first frame after QEMU connects")
	stormFlag(f, &o.Storm)
	accelerated(f, &o.Accel)
	sandboxFlag(f, &l.Sandbox)
	l.Dump.Flags(f)
	f.BoolVar(&x.asJSON, "json", false, "print one JSON object")
	metricsFlag(f, &l.Show)
	l.Page.Flags(f)
	f.BoolVarP(&x.verbose, "verbose", "v", false, "log what happens")
}

func (x *serveFlags) run(c *cobra.Command, _ []string) error {
	o, l := &x.options, &x.live
	if x.capabilities {
		return serve.PrintCapabilities(c.OutOrStdout())
	}
	if err := x.takeOptions(c); err != nil {
		return err
	}
	if err := cmp.Or(errors.Join(l.Check(), o.Check(), checkFlows(o.Flows)),
		serve.CheckInherited(o.FDs)); err != nil {
		return misuse(c, err)
	}
	if c.Flags().Changed(memoryMaxFlag) {
		if x.guestRAM == 0 {
			return usagef(c, "--%s 0: the RAM of each guest, as 2G", memoryMaxFlag)
		}
		_, err := fmt.Fprintf(c.OutOrStdout(), "MemoryMax=%d\n", o.MemoryMax(x.guestRAM))
		return err
	}
	boots, err := imageToBoot(c, x.imageDir, o.NIC.Model)
	if err != nil {
		return err
	}
	out, err := results(c, &l.Dump, x.asJSON)
	if err != nil {
		return err
	}
	stderr := show.New(c.ErrOrStderr(), true) // several goroutines may write to it
	o.Log = show.Log(stderr, slog.LevelWarn, x.verbose)
	note := func(format string, args ...any) { fmt.Fprintln(stderr, show.Plainly(format, args...)) }
	o.Note = note
	if boots != nil {
		o.Boot = boots.Args(o.Accel == qemu.AccelKVM)
		by := "TCG; with KVM: -accel kvm -cpu host"
		if o.Accel == qemu.AccelKVM {
			by = "KVM"
		}
		note("QEMU is to boot %s (--image none: nothing), by %s", filepath.Dir(boots.Kernel), by)
	}
	o.Event = func(port, format string, args ...any) {
		note(show.TimeOfDay()+" "+port+": "+format, args...)
	}
	o.Ready = func(r *serve.Report) error { return show.Report(out, x.asJSON, r, r.Print) }
	seedLinks(c, o.Lab, &o.Impair, note)
	for _, fd := range o.FDs { // the broker must not inherit them
		unix.CloseOnExec(fd)
	}
	return l.Run(c, &o.Common, o.BrokerConfig, func(ctx context.Context) error {
		err := serve.Do(ctx, *o)
		if r := l.Capture.Report(); r != nil {
			note("%v", r)
		}
		return err
	})
}

func (x *serveFlags) takeOptions(c *cobra.Command) (err error) {
	o := &x.options
	if x.labName != "" {
		file, err := loadLab(c, x.labName, withoutRAM, "ports", "nic", "queues", "seed", "p2p", "uplink")
		if err != nil {
			return err
		}
		x.live.Uplinks = file.UplinksOf("")
		o.NIC.Model = ""
		if err := o.Take(file, x.paths); err != nil {
			return misuse(c, err)
		}
	} else if o.Paths, err = serve.Paths(x.paths, x.ports); err != nil {
		return misuse(c, err)
	}
	if len(o.Paths) == 0 && len(o.FDs) == 0 {
		o.FDs = serve.Inherited()
	}
	if o.NoP2P = x.p2p == "off"; !o.NoP2P && x.p2p != "on" {
		return usagef(c, "--p2p %s: on or off", x.p2p)
	}
	return nil
}

// imageToBoot returns the image that the printed commands boot; nil: none.
func imageToBoot(c *cobra.Command, dir, model string) (*image.Files, error) {
	given := c.Flags().Changed("image")
	switch {
	case dir == "none":
		return nil, nil
	case given && dir == "":
		return nil, usagef(c, "--image '': the directory that 'vnic image build' has made, or none")
	case !given:
		dir = image.DefaultDir
	}
	f, err := image.Load(dir)
	another := errors.As(err, new(version.Error))
	switch {
	case !given && (err != nil && !another || f.NIC != model): // no image that loads, or one for another NIC
		return nil, nil
	case another:
		return nil, err
	case err != nil:
		return nil, misuse(c, fmt.Errorf("--image: %w", err))
	case model != "" && f.NIC != model:
		return nil, usagef(c, "--image %s: it is for a %s NIC: give --nic %s, or build one with --nic %s", dir, f.NIC, f.NIC,
			model)
	}
	return &f, nil
}
