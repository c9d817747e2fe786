package main

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"strings"

	"github.com/spf13/cobra"

	"vnic.dev/vnic/internal/broker"
	"vnic.dev/vnic/internal/lab/labfile"
	"vnic.dev/vnic/internal/live"
	"vnic.dev/vnic/internal/machine/assets"
	"vnic.dev/vnic/internal/report/pcap"
	"vnic.dev/vnic/internal/report/show"
	"vnic.dev/vnic/internal/session"
)

// use is the common part of allreduce, load, block and rdma.
type use struct {
	opt      *session.Options
	complete func() error // derives and checks options
	progress func(*show.UI, string, uint64, uint64)

	mode, guest, lab string
	unused           []string // keys that the lab file has and the command ignores
	asJSON, verbose  bool
	live             live.Command

	server func(context.Context) (io.Closer, error) // starts or finds the server, before the sandbox begins; may be nil
}

func newUse(command string, o *session.Options, complete func() error) *use {
	return &use{opt: o, complete: complete, progress: (*show.UI).Progress, mode: strings.Join(o.Modes, ","), guest: "qemu",
		live: live.New(command)}
}

func (u *use) flags(c *cobra.Command) {
	f, o := c.Flags(), u.opt
	if len(o.Modes) > 0 {
		f.StringVar(&u.mode, "mode", u.mode, "devmem, copy (payload through guest RAM, as a baseline) or both")
	}
	f.StringSliceVar(&o.NIC, "nic", o.NIC, "virtio: our driver and TCP stack in the guests; gve: the kernel's, which "+
		"needs QEMU "+assets.MinVFIOUser+"; with commas between, one for each guest, the last one for all that follow")
	f.StringVar(&u.guest, "guest", u.guest, "qemu, or inproc: guests in this process, over the same vhost-user socket")
	labFlag(f, &u.lab)
	f.IntVar(&o.MTU, "mtu", o.MTU, "MTU of the links, which is also the largest that the NICs take")
	impairFlags(f, &o.Impairment)
	f.IntVar(&o.Family, "family", o.Family, "IP version, 4 or 6")
	f.Var(&o.P2P, "p2p", "on, or off: the NICs cannot reach the GPUs, payload goes through host memory; or off=1,3 for "+
		"some guests, from 0 on")
	f.Uint64Var(&o.Seed, "seed", 0, "seed of all data, and of what links do by chance (default: random, printed)")
	f.Var((*bytesFlag)(&o.Memory), "memory", "RAM of each guest")
	f.Var((*bytesFlag)(&o.GPUMemory), "gpu-memory", "memory of each GPU, a power of two")
	gpuDriverFlag(f, &o.Driver, &o.Fetch)
	machineFlags(f, &o.Accel)
	sandboxFlag(f, &u.live.Sandbox)
	sourceFlags(f, &o.Fetch)
	u.live.Dump.Flags(f)
	f.BoolVar(&u.asJSON, "json", false, "print one JSON object")
	metricsFlag(f, &u.live.Show)
	f.BoolVarP(&u.verbose, "verbose", "v", false, "log what happens")
}

func (u *use) check(c *cobra.Command) error {
	if err := u.live.Check(); err != nil {
		return misuse(c, err)
	}
	if !c.Flags().Changed("seed") {
		u.opt.Seed = uint64(rand.Uint32())
	}
	if u.mode == "both" {
		u.opt.Modes = []string{"devmem", "copy"}
	} else if len(u.opt.Modes) > 0 {
		u.opt.Modes = []string{u.mode}
	}
	switch u.guest {
	case "qemu":
	case "inproc":
		u.opt.InProc = true
	default:
		return usagef(c, "--guest %s: qemu or inproc", u.guest)
	}
	if err := driverNeedsKernel(c, u.opt.Driver, u.opt.InProc); err != nil {
		return err
	}
	if u.lab != "" {
		if err := u.takeLab(c); err != nil {
			return err
		}
	}
	return misuse(c, u.complete())
}

func (u *use) takeLab(c *cobra.Command) error {
	l, err := loadLab(c, u.lab, func(l *labfile.Lab) uint64 { return l.Memory(!u.opt.InProc) }, "nic")
	if err != nil {
		return err
	}
	sow(l, u.opt.Seed)
	setDrivers(l, u.opt.Driver, false)
	if len(l.Script) > 0 {
		u.unused = append(u.unused, "script")
	}
	if len(l.Uplinks) > 0 {
		u.unused = append(u.unused, "uplinks")
	}
	u.opt.Lab = l
	// Unless --guests is given, use all guests of the lab; a command without the flag keeps its fixed number.
	if f := c.Flags().Lookup("guests"); f != nil && !f.Changed {
		u.opt.Guests = 0
	}
	return nil
}

type report interface {
	Table(w io.Writer) error
	SetCapture(p *pcap.Report)
}

// runUse checks the flags, starts the command's server, if it has one, calls do, and prints do's report, if it is not
// nil.
func runUse[R any, P interface {
	*R
	report
}](u *use, c *cobra.Command, do func(context.Context) (P, error)) (err error) {
	if err := u.check(c); err != nil {
		return err
	}
	if u.server != nil {
		var server io.Closer
		if server, err = u.server(c.Context()); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, server.Close()) }()
	}
	out, err := results(c, &u.live.Dump, u.asJSON)
	if err != nil {
		return err
	}
	ui := show.New(c.ErrOrStderr(), u.asJSON && !u.verbose)
	defer ui.Done()
	o := u.opt
	o.Log = ui.Fetching(&o.Fetch, u.verbose)
	o.Stage, o.Note = ui.Stage, ui.Note
	o.Progress = func(mode string, done, total uint64) { u.progress(ui, mode, done, total) }
	if len(u.unused) > 0 {
		ui.Note("--lab %s: this command does nothing with its %s", u.lab, strings.Join(u.unused, ", "))
	}
	u.live.More = broker.Terminal
	return u.live.Run(c, &o.Common, o.BrokerConfig, func(ctx context.Context) error {
		rep, err := do(ctx)
		ui.ClearLine()
		if rep == nil {
			return err
		}
		rep.SetCapture(u.live.Capture.Report())
		return errors.Join(err, show.Report(out, u.asJSON, rep, rep.Table))
	})
}

// results returns where to print results: stderr if the capture goes to stdout, else stdout. It returns a usage error
// if flags of the capture are wrong.
func results(c *cobra.Command, dump *pcap.Options, asJSON bool) (io.Writer, error) {
	out := c.OutOrStdout()
	if dump.Stdout = out; dump.File == "-" {
		out = c.ErrOrStderr()
	}
	return out, misuse(c, dump.Check(asJSON))
}
