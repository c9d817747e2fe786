package boot

import (
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"vnic.dev/vnic/internal/agent"
	"vnic.dev/vnic/internal/gpusocket"
	"vnic.dev/vnic/internal/guestexec"
	"vnic.dev/vnic/internal/guestnet"
	"vnic.dev/vnic/internal/guesttools"
	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/machine"
	"vnic.dev/vnic/internal/machine/qemu"
	"vnic.dev/vnic/internal/ownports"
	"vnic.dev/vnic/internal/session"
)

type guest struct {
	*session.Guest
	place
	runner  *runner
	network guestnet.Result
	ran     bool // its program has ended, with any exit status
}

// kernelLog is the kernel's log level on consoles that LogDir keeps: all messages but those for debugging, which would
// delay a boot on the slow serial line. Options.Append follows it on the command line, and may change it.
const kernelLog = "loglevel=7"

const forever = 365 * 24 * time.Hour // as a time limit: practically none

// complete sets the parts of guest i's configuration that come from the options of vnic boot. done closes the disks of
// --tools.
func (l *runner) complete(c *machine.Config, i int) (done func(), err error) {
	o := l.opt
	c.Agent = agent.Config{Hostname: c.Name, Port: true}
	c.Files = io.NewSectionReader(l.images.files, 0, l.images.size)
	c.Append, c.Args, c.ResultsPort = o.Append, o.QEMUArgs, true
	if o.GDB != 0 {
		port := o.GDB + i
		ownports.Add(uint16(port)) // QEMU will listen there
		c.Args = append(c.Args[:len(c.Args):len(c.Args)], "-gdb", "tcp:127.0.0.1:"+strconv.Itoa(port))
		c.Append, c.BootLimit = strings.TrimSpace("nokaslr "+c.Append), forever // debugging a boot takes time
		o.Note("%s: gdb: target remote 127.0.0.1:%d", c.Name, port)
	}
	if o.LogDir != "" {
		c.Console = l.logs[i]
		c.Append = strings.TrimSpace(kernelLog + " " + c.Append)
	}
	c.Disks, err = l.tools.disks()
	return func() { closeDisks(c.Disks) }, err
}

// start prepares a booted guest for the program: its network, the packages of --tools, and gpusocket if the
// kernel drives a NIC that reaches a GPU. It notes for the user what differs from the lab, and what is not ready.
func (g *guest) start(ctx context.Context) (err error) {
	o, im := g.runner.opt, g.runner.images
	if g.network, err = guestnet.Apply(ctx, g.QEMU.Agent(), o.network(g.place)); err != nil {
		fix := qemu.NewerKernel
		if im.Modules == nil {
			fix = "it came without modules: give them by --modules, or build " + o.drivers(" and ") + " in"
		}
		return im.BlameKernel(g.blame(ctx, err), fix)
	}
	if tools := g.runner.tools; tools != nil {
		if err := guesttools.Mount(ctx, g.QEMU.Agent(), tools.config()); err != nil {
			return im.BlameKernel(g.blame(ctx, err), "--tools needs its modules "+strings.Join(o.toolModules(), ", ")+
				", or these built in")
		}
	}
	if err := g.compareTrees(ctx); err != nil {
		return g.blame(ctx, err)
	}
	for _, p := range g.hw.Ports {
		if g.hw.IOMMU && g.network.NotReady == "" && !p.Translated() {
			o.Note("%s: its kernel does not translate what %s addresses: was it built without CONFIG_INTEL_IOMMU, or told "+
				"iommu=pt?", g.name, p.Name)
		}
	}
	if missing := g.network.NotReady; missing != "" {
		o.Note("%s: the network is not ready: %s: the program starts without it", g.name, missing)
	}
	if p := g.gpuPort(); p != nil {
		if err := gpusocket.Start(ctx, g.QEMU.Agent(), g.found(p).Name); err != nil {
			return g.blame(ctx, err)
		}
	}
	return nil
}

func (g *guest) env() []string {
	o := g.runner.opt
	env := append(plainEnv(g.runner.tools), "PS1="+g.name+`:\w\$ `, "VNIC_INDEX="+strconv.Itoa(g.index),
		"VNIC_GUESTS="+strconv.Itoa(o.Guests), "VNIC_NIC="+g.devmem[0].Model.Name)
	devices := g.devices()
	var all []string
	for _, e := range devices {
		all = append(all, e.String())
	}
	first := devices[0]
	env = append(env, "VNIC_DEVICE="+first.device, "VNIC_ADDR="+first.addr4.String(),
		"VNIC_ADDR6="+first.addr6.String(), "VNIC_DEVICES="+strings.Join(all, " "),
		"VNIC_GPUS="+strings.Join(g.gpus(), " "))
	if o.Lab != nil {
		env = append(env, "VNIC_PEERS="+strings.Join(g.peers(), " "))
	}
	if g.gpuPort() != nil {
		env = append(env, "VNIC_GPU="+gpusocket.Path)
	}
	for _, e := range []string{"TERM", "COLORTERM", "LD_LIBRARY_PATH"} {
		if v, ok := os.LookupEnv(e); ok {
			env = append(env, e+"="+v)
		}
	}
	env = append(append(env, limits.Environ()...), g.runner.program.env...)
	return append(env, o.given()...)
}

// run runs the program in the guest, and returns its exit status as a shell does: after a signal 128 plus its number.
func (g *guest) run(ctx context.Context, s streams) (int, error) {
	p := g.runner.program
	status, err := guestexec.Run(ctx, g.QEMU.Agent(), guestexec.Command{Path: p.path, Args: p.args, Env: g.env(),
		Dir: p.dir, Stdin: s.in, Stdout: s.out, Stderr: s.err, TTY: s.tty, Size: s.size, Resize: s.resize})
	if g.runner.opt.Guests == 1 {
		g.runner.terminal.Close()
	}
	if err != nil {
		return 0, g.blame(ctx, err)
	}
	s.end()
	g.ran = true
	if status.Signal != 0 {
		g.runner.opt.Note("%s: %s was ended by signal %d", g.name, p.args[0], status.Signal)
	}
	return status.Exit(), nil
}

func (g *guest) blame(ctx context.Context, err error) error {
	return g.runner.Blame(ctx, fmt.Errorf("%s: %w", g.name, err))
}

// powerOff shuts down a guest whose program has ended, if LogDir keeps its console, so that the console is
// complete.
func (g *guest) powerOff() {
	if !g.ran || g.runner.opt.LogDir == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), limits.PowerOff.Here())
	defer cancel()
	_ = g.QEMU.PowerOff(ctx)
}
