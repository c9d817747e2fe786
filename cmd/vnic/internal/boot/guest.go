package boot

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"vnic.dev/vnic/internal/agent"
	"vnic.dev/vnic/internal/gpusocket"
	"vnic.dev/vnic/internal/guestnet"
	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/machine"
	"vnic.dev/vnic/internal/machine/qemu"
	"vnic.dev/vnic/internal/ownports"
	"vnic.dev/vnic/internal/session"
)

// guest is one of them.
type guest struct {
	place
	runner  *runner
	machine *machine.Guest // nil: not booted
	network guestnet.Result
	ran     bool // the program, to its end
}

// kernelLog has the kernel's log on a console that is kept: all but what is for debugging, which costs a boot 2 s of
// its slow serial line under TCG. The user's own words come behind it.
const kernelLog = "loglevel=7"

const forever = 365 * 24 * time.Hour // the program says when it is done

// boot starts the guest, which lives as long as ctx, and its network. When ready ends first, the guest is ended.
func (g *guest) boot(ctx, ready context.Context) (err error) {
	o, im := g.runner.opt, g.runner.images
	c := machine.Config{Name: g.name, Agent: agent.Config{Hostname: g.name, Port: true},
		Files: io.NewSectionReader(im.files, 0, im.size), RAMSize: o.ram(g.index), CPUs: o.cpus(g.index),
		Append: o.Append,
		Args:   o.QEMUArgs, TimeLimit: forever, ResultsPort: true, Log: o.Log, Accel: o.Accel}
	if g.runner.gate != nil {
		c.Started = g.runner.gate.Pass
	}
	if o.GDB != 0 {
		port := o.GDB + g.index
		ownports.Add(uint16(port)) // QEMU's, for the rest of the run
		c.Args = append(c.Args[:len(c.Args):len(c.Args)], "-gdb", "tcp:127.0.0.1:"+strconv.Itoa(port))
		c.Append, c.BootLimit = strings.TrimSpace("nokaslr "+c.Append), forever // a person who debugs the boot takes time
		o.Note("%s: gdb: target remote 127.0.0.1:%d", g.name, port)
	}
	if o.LogDir != "" {
		c.Console = g.runner.logs[g.index]
		c.Append = strings.TrimSpace(kernelLog + " " + c.Append)
	}
	if c.Disks, err = g.runner.tools.disks(); err != nil {
		return err
	}
	defer closeDisks(c.Disks) // QEMU has them then
	starting, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(ready, cancel)
	m, err := im.Boot(starting, g.hw, c)
	if err != nil {
		cancel()
		return err
	}
	g.machine = m
	if !stop() {
		return context.Cause(ready)
	}
	if g.network, err = guestnet.Apply(ready, m.Agent(), o.network(g.place)); err != nil {
		fix := qemu.NewerKernel
		if im.Modules == nil {
			fix = "it came without modules: give them by --modules, or build " + o.drivers(" and ") + " in"
		}
		return im.BlameKernel(g.blame(err), fix)
	}
	if err := g.runner.tools.mount(ready, m.Agent()); err != nil {
		return im.BlameKernel(g.blame(err), "--tools needs its modules "+strings.Join(o.toolModules(), ", ")+
			", or these built in")
	}
	if err := g.compareTrees(ready); err != nil {
		return g.blame(err)
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
		if err := gpusocket.Start(ready, m.Agent(), g.found(p).Name); err != nil {
			return g.blame(err)
		}
	}
	return nil
}

// env is the program's environment.
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

// run runs the program and gives its exit status as a shell does.
func (g *guest) run(ctx context.Context, s streams) (int, error) {
	p := g.runner.program
	status, err := session.Run(ctx, g.machine.Agent(), session.Command{Path: p.path, Args: p.args, Env: g.env(),
		Dir: p.dir, Stdin: s.in, Stdout: s.out, Stderr: s.err, TTY: s.tty, Size: s.size, Resize: s.resize})
	if g.runner.opt.Guests == 1 {
		g.runner.terminal.Close() // what follows is this process's
	}
	if err != nil {
		return 0, g.blame(err)
	}
	s.end()
	g.ran = true
	if status.Signal != 0 {
		g.runner.opt.Note("%s: %s was ended by signal %d", g.name, p.args[0], status.Signal)
	}
	return status.Exit(), nil
}

// blame finds what is behind an error: a guest that is gone explains whatever came of it.
func (g *guest) blame(err error) error {
	if remote := (*agent.RemoteError)(nil); errors.As(err, &remote) {
		return fmt.Errorf("%s: %w", g.name, err)
	}
	if gone := g.machine.Gone("while its program ran"); gone != nil {
		return gone
	}
	return fmt.Errorf("%s: %w", g.name, err)
}

func (g *guest) close() error {
	if g.machine == nil {
		return nil
	}
	if g.ran && g.runner.opt.LogDir != "" { // it waits until the console has had its last line
		ctx, cancel := context.WithTimeout(context.Background(), limits.PowerOff.Here())
		defer cancel()
		_ = g.machine.PowerOff(ctx)
	}
	if err := g.machine.Close(); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}
