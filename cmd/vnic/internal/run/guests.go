package run

import (
	"context"
	"fmt"
	"slices"
	"time"

	"vnic.dev/vnic/cmd/vnic/internal/broker"
	"vnic.dev/vnic/cmd/vnic/internal/guests"
	"vnic.dev/vnic/cmd/vnic/internal/limit"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/machine"
	"vnic.dev/vnic/internal/machine/qemu"
	"vnic.dev/vnic/internal/transfer"
)

// prepareGuests finds or fetches what guests boot from, nil for in-process guests: stage fetch.
func prepareGuests(ctx context.Context, o *Options) (*machine.Images, error) {
	if err := o.stage(ctx, Step{Stage: "fetch"}); err != nil {
		return nil, err
	}
	if o.InProc {
		return nil, nil
	}
	models, err := o.guestModels()
	if err != nil {
		return nil, err
	}
	d, err := o.description()
	if err != nil {
		return nil, err
	}
	// With rails the kernel says which NIC is which.
	return guests.Images(ctx, o.Fetch, models, o.Rails > 0, o.note, machine.DriverModules(d.Guests)...)
}

// description is the lab that the options ask for.
func (o *Options) description() (lab.Description, error) {
	if o.Rails > 0 {
		return o.describeRails()
	}
	return o.describe()
}

// guestModels are the models of the guests' NICs that are used, each once.
func (o *Options) guestModels() (list []string, err error) {
	if o.Rails > 0 {
		d, err := o.describeRails()
		for i, g := range d.Guests {
			if !o.away(i) {
				list = append(list, o.modelsOf(&g)...)
			}
		}
		slices.Sort(list)
		return slices.Compact(list), err
	}
	models, err := o.models()
	for _, m := range models {
		list = append(list, m.Name)
	}
	slices.Sort(list)
	return slices.Compact(list), err
}

// boot starts both guests and their NICs.
func (l *runner) boot(ctx context.Context, im *machine.Images) error {
	if im == nil {
		l.info = inProcInfo
		if err := l.opt.stage(ctx, Step{Stage: "boot"}); err != nil {
			return err
		}
		if err := l.opt.stage(ctx, Step{Stage: "setup"}); err != nil {
			return err
		}
		for _, e := range l.ends {
			l.opt.alive.Set(e.title(), limit.Runs)
		}
		if err := both(ctx, l.ends[0].inProc, l.ends[1].inProc); err != nil || l.opt.Confine == nil {
			return err
		}
		return l.opt.Confine()
	}
	if err := l.start(ctx, im); err != nil {
		return err
	}
	return l.setup(ctx, im)
}

// setup has both guests take their NICs: stage setup.
func (l *runner) setup(ctx context.Context, im *machine.Images) error {
	if err := l.opt.stage(ctx, Step{Stage: "setup"}); err != nil {
		return err
	}
	if err := l.onBoth(ctx, l.opt.patience(), l.ends[0].setup, l.ends[1].setup); err != nil {
		return im.BlameKernel(fmt.Errorf("set up its NIC: %w", err), qemu.NewerKernel)
	}
	return nil
}

// start starts both machines: stage boot.
func (l *runner) start(ctx context.Context, im *machine.Images) error {
	if err := l.opt.stage(ctx, Step{Stage: "boot"}); err != nil {
		return err
	}
	start := time.Now()
	l.info = Report{Guest: "qemu", QEMU: im.QEMU.Version, Kernel: im.Kernel.Version, Untested: im.Untested}
	// The machines live as long as the lab, so errgroup's context is not theirs; but one that fails to
	// boot ends the other.
	mctx, cancel := context.WithCancel(ctx)
	l.stop = cancel
	for _, e := range l.here() {
		l.opt.alive.Set(e.title(), limit.Boots)
	}
	boot := func(e *end) func(context.Context) error {
		return func(context.Context) error {
			if e.away() {
				return nil
			}
			err := e.boot(mctx, im, l.gate)
			if err != nil {
				cancel()
			}
			return err
		}
	}
	if err := both(ctx, boot(l.ends[0]), boot(l.ends[1])); err != nil {
		return err
	}
	l.info.Accel = string(l.here()[0].qemu.Accel())
	l.info.BootSeconds = time.Since(start).Seconds()
	return nil
}

// inProcInfo is what is known of guests in this process.
var inProcInfo = Report{Guest: "inproc", QEMU: "none", Kernel: "none", Accel: "none"}

// inProc makes a guest of a driver and a stack in this process, over the same vhost-user socket.
func (e *end) inProc(context.Context) error {
	node, err := e.open()
	if err != nil {
		return err
	}
	e.onClose(node.Close)
	e.guest = node
	return nil
}

// nodeConfig says how the end's guest takes its NIC.
func (e *end) nodeConfig() guests.NodeConfig {
	return guests.NodeConfig{Port: e.nic, GPU: e.gpu, Family: e.opt.Family, Bind: e.opt.BindQueues, Loss: e.opt.loss(),
		Window: e.size, Device: e.device, Number: e.number, Log: e.log}
}

// open starts a driver and a stack in this process. The Node is the caller's to close.
func (e *end) open() (*transfer.Node, error) {
	node, err := guests.InProcess(e.nodeConfig())
	if err != nil {
		return nil, fmt.Errorf("guest %s: %w", e.name, err)
	}
	return node, nil
}

// title is the guest's, for users.
func (e *end) title() string { return "guest " + e.hw.Name }

// boot starts a guest under QEMU, which lives as long as ctx, at most until the end is closed.
func (e *end) boot(ctx context.Context, im *machine.Images, gate *broker.Gate) error {
	c := guests.BootConfig{Memory: e.ram, CPUs: e.cpus, Gate: gate, Log: e.log, Accel: e.opt.Accel}
	copies := time.Duration(e.opt.Size>>20*uint64(max(1, 2*e.opt.Rails))) * time.Second
	c.TimeLimit = (limits.TransferGuest + limits.Limit(copies)).Here()
	if e.opt.Keep {
		console, err := e.opt.keep("console-" + e.name + ".log")
		if err != nil {
			return err
		}
		e.onClose(console.Close)
		c.Console = console
	}
	g, err := guests.Boot(ctx, im, e.hw, c)
	if err != nil {
		return err
	}
	e.opt.alive.Set(e.title(), limit.Runs)
	e.qemu = g
	e.onClose(g.Close)
	return nil
}

// setup has a guest take its NIC and start its stack.
func (e *end) setup(ctx context.Context) error {
	g, window, err := guests.Setup(ctx, e.qemu.Agent(), e.nodeConfig())
	if err == nil {
		err = guests.CheckTranslation(e.hw, e.nic)
	}
	if err != nil {
		return err
	}
	e.guest, e.window = g, window
	return nil
}
