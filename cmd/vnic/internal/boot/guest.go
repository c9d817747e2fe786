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

	"vnic.dev/vnic/guest-images/agent"
	"vnic.dev/vnic/guest-images/gpusocket"
	"vnic.dev/vnic/guest-images/guestnet"
	"vnic.dev/vnic/guest-images/session"
	"vnic.dev/vnic/qemu"
)

// guest is one of them.
type guest struct {
	place
	lab     *runner
	machine *qemu.Machine // nil: not booted
	network guestnet.Result
	blamed  bool // the machine's end is the command's error already
}

const (
	bootLimit = 3 * time.Minute      // it takes seconds, but may share a small machine with much else
	forever   = 365 * 24 * time.Hour // the program says when it is done
)

// boot starts the guest, which lives as long as ctx, and its network. When ready ends first, that was for nothing.
func (g *guest) boot(ctx, ready context.Context) error {
	o, im := g.lab.opt, g.lab.images
	initrd, err := im.initrd.Initrd(agent.Config{Modules: im.modules, Hostname: g.name, HugePages: g.lab.world.Personality().HugePages, Node0: o.node(), Port: true})
	if err != nil {
		return err
	}
	defer func() { _ = initrd.Close() }()
	c := qemu.Config{Name: g.name, QEMU: im.QEMU, Kernel: im.Kernel, Initrd: []io.Reader{initrd, io.NewSectionReader(im.files, 0, im.size)},
		RAMSize: o.Memory, CPUs: o.CPUs, Cache: im.Cache, Log: o.Log, Args: o.QEMUArgs, BootLimit: bootLimit, TimeLimit: forever, ResultsPort: true}
	if o.GDB != 0 {
		port := o.GDB + g.index
		c.Args = append(c.Args[:len(c.Args):len(c.Args)], "-gdb", "tcp:127.0.0.1:"+strconv.Itoa(port))
		c.Append, c.BootLimit = "nokaslr", forever // who debugs the boot takes time
		o.Note("%s: gdb: target remote 127.0.0.1:%d", g.name, port)
	}
	g.kernel.Hardware(&c)
	if g.devmem != g.kernel {
		g.devmem.Hardware(&c)
	}
	c.Append = strings.TrimSpace(c.Append + " " + o.Append)
	if o.LogDir != "" {
		c.Console = g.lab.logs[g.index]
	}
	starting, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(ready, cancel)
	m, err := qemu.Start(starting, c)
	if err != nil {
		cancel()
		return err
	}
	g.machine = m
	if !stop() {
		return context.Cause(ready)
	}
	if g.network, err = guestnet.Apply(ready, m.Agent(), o.network(g.place)); err != nil {
		err = g.blame(err)
		if remote := (*agent.RemoteError)(nil); errors.As(err, &remote) && im.Kernel.Source == qemu.SourceGiven {
			fix := "take a newer one (6.12 and 7.2 are tested), or none, and one is fetched"
			if im.modules == nil {
				fix = "it came without modules: give them by --modules, or build " + o.driver() + " in"
			}
			return &qemu.Missing{What: "kernel " + im.Kernel.Version, Err: err, Fix: fix}
		}
		return err
	}
	if missing := g.network.NotReady; missing != "" {
		o.Note("%s: the network is not ready: %s: the program starts without it", g.name, missing)
	}
	if o.gpuSocket() {
		if err := gpusocket.Start(ready, m.Agent(), g.network.Interfaces[0].Name); err != nil {
			return g.blame(err)
		}
	}
	return nil
}

// env is the program's environment.
func (g *guest) env() []string {
	o := g.lab.opt
	env := append(plainEnv(), "PS1="+g.name+`:\w\$ `, "VNIC_INDEX="+strconv.Itoa(g.index), "VNIC_GUESTS="+strconv.Itoa(o.Guests), "VNIC_NIC="+o.NIC)
	device := g.network.Interfaces[len(g.network.Interfaces)-1]
	name := device.PCI
	if o.node() {
		name = device.Name
	}
	a4, a6 := o.devmemAddrs(g.index)
	env = append(env, "VNIC_DEVICE="+name, "VNIC_ADDR="+a4.String(), "VNIC_ADDR6="+a6.String())
	if o.gpuSocket() {
		env = append(env, "VNIC_GPU="+gpusocket.Path)
	}
	for _, e := range []string{"TERM", "COLORTERM", "LD_LIBRARY_PATH"} {
		if v, ok := os.LookupEnv(e); ok {
			env = append(env, e+"="+v)
		}
	}
	return append(env, o.given()...)
}

// run runs the program and gives its exit status as a shell does.
func (g *guest) run(ctx context.Context, s streams) (int, error) {
	p := g.lab.program
	status, err := session.Run(ctx, g.machine.Agent(), session.Command{Path: p.path, Args: p.args, Env: g.env(), Dir: p.dir,
		Stdin: s.in, Stdout: s.out, Stderr: s.err, TTY: s.tty, Size: s.size, Resize: s.resize})
	s.close()
	if err != nil {
		return 0, g.blame(err)
	}
	s.end()
	if status.Signal != 0 {
		g.lab.opt.Note("%s: %s was ended by signal %d", g.name, p.args[0], status.Signal)
	}
	return status.Exit(), nil
}

// errPowerOff is a guest that has ended of its own accord.
var errPowerOff = errors.New("powered off while its program ran")

// blame finds what is behind an error: a guest that is gone explains whatever came of it.
func (g *guest) blame(err error) error {
	remote := (*agent.RemoteError)(nil)
	if errors.As(err, &remote) {
		return fmt.Errorf("%s: %w", g.name, err)
	}
	select {
	case <-g.machine.Agent().Done():
	default:
		return fmt.Errorf("%s: %w", g.name, err)
	}
	select { // QEMU's own end, if it is that, is seen a moment later
	case <-g.machine.Done():
	case <-time.After(farewell):
	}
	g.blamed = true
	if gone := g.machine.Close(); gone != nil {
		return gone
	}
	return fmt.Errorf("%s: %w", g.name, errPowerOff)
}

func (g *guest) close() error {
	if g.machine == nil {
		return nil
	}
	err := g.machine.Close()
	if g.blamed || errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}
