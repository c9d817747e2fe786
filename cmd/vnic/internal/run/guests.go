package run

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"time"

	"vnic.dev/vnic/driver"
	guestimages "vnic.dev/vnic/guest-images"
	"vnic.dev/vnic/guest-images/agent"
	"vnic.dev/vnic/guest-images/transfer"
	"vnic.dev/vnic/qemu"
)

// images is what guests boot from; nil for in-process guests.
type images struct {
	*qemu.Resolved
	initrd *guestimages.Image
}

// close lets go of what of the cache is used; im may be nil.
func (im *images) close() {
	if im != nil {
		_ = im.Resolved.Close() // of directories that were only held
	}
}

// prepareGuests finds or fetches what guests boot from: stage fetch.
func prepareGuests(ctx context.Context, o *Options) (*images, error) {
	if err := o.stage(ctx, Step{Stage: "fetch"}); err != nil {
		return nil, err
	}
	if o.InProc {
		return nil, nil
	}
	o.Fetch.VFIOUser = o.personality().VFIOUser
	res, err := qemu.Fetch(ctx, o.Fetch)
	if err != nil {
		return nil, err
	}
	for _, n := range res.Notes {
		o.note("%s", n)
	}
	for _, n := range res.Untested {
		o.note("untested: %s", n)
	}
	img, err := guestimages.Build(ctx, guestimages.Options{CacheDir: res.Cache, Kernel: res.Kernel.Version, ModulesDir: res.Kernel.Modules, Modules: o.personality().Modules,
		Applets: []string{"devmem"}})
	if err != nil {
		if errors.Is(err, guestimages.ErrNoModule) || errors.Is(err, guestimages.ErrOtherKernel) || errors.Is(err, guestimages.ErrBadModule) {
			err = &qemu.Missing{What: "kernel " + res.Kernel.Version + " lacks what a guest needs", Err: err,
				Fix: "use a kernel with " + strings.Join(o.personality().Modules, ", ") + " as a module, with its modules by --modules, or none of --kernel"}
		}
		return nil, errors.Join(qemu.CacheError(res.Cache, err), res.Close())
	}
	return &images{Resolved: res, initrd: img}, nil
}

// boot starts both guests and their NICs.
func (l *runner) boot(ctx context.Context, im *images) error {
	if im == nil {
		l.info = guestInfo{qemu: "none", kernel: "none", accel: "none"}
		if err := l.opt.stage(ctx, Step{Stage: "boot"}); err != nil {
			return err
		}
		if err := l.opt.stage(ctx, Step{Stage: "setup"}); err != nil {
			return err
		}
		return both(ctx, l.ends[0].inProc, l.ends[1].inProc)
	}
	if err := l.start(ctx, im); err != nil {
		return err
	}
	if err := l.opt.stage(ctx, Step{Stage: "setup"}); err != nil {
		return err
	}
	if err := l.order(ctx, l.opt.patience(), l.ends[0].setup, l.ends[1].setup); err != nil {
		return im.blame(fmt.Errorf("set up its NIC: %w", err))
	}
	return nil
}

// blame names the user's kernel where its driver refused the NIC: it may be too old, as gve of 6.1 is.
func (im *images) blame(err error) error {
	if remote := (*agent.RemoteError)(nil); errors.As(err, &remote) && im.Kernel.Source == qemu.SourceGiven {
		return &qemu.Missing{What: "kernel " + im.Kernel.Version, Err: err, Fix: "take a newer one (6.12 and 7.2 are tested), or none, and one is fetched"}
	}
	return err
}

// start starts both machines: stage boot.
func (l *runner) start(ctx context.Context, im *images) error {
	if err := l.opt.stage(ctx, Step{Stage: "boot"}); err != nil {
		return err
	}
	start := time.Now()
	l.info = guestInfo{qemu: im.QEMU.Version, kernel: im.Kernel.Version, untested: im.Untested, cpu: true}
	// The machines live as long as the lab, so errgroup's context is not theirs; but one that fails to boot ends the other.
	mctx, cancel := context.WithCancel(ctx)
	l.stop = cancel
	boot := func(e *end) func(context.Context) error {
		return func(context.Context) error {
			err := e.boot(mctx, im)
			if err != nil {
				cancel()
			}
			return err
		}
	}
	if err := both(ctx, boot(l.ends[0]), boot(l.ends[1])); err != nil {
		return err
	}
	l.info.accel = string(l.ends[0].machine.Accel())
	l.info.boot = time.Since(start)
	return nil
}

// inProc makes a guest of a driver and a stack in this process, over the same vhost-user socket.
func (e *end) inProc(context.Context) error {
	backend, frontend, err := socketPair()
	if err != nil {
		return fmt.Errorf("guest %s: %w", e.name, err)
	}
	e.nic.Connected(backend)
	n, err := driver.Attach(driver.FrontendOptions{Options: driver.Options{QueuePairs: e.opt.queuePairs(), HostQueues: e.opt.hostQueues(), Log: e.log},
		Conn: frontend, MAC: net.HardwareAddr(e.nic.MAC[:]), MTU: e.opt.MTU,
		GPUs: []driver.FrontendGPU{{ID: e.gpu.ID(), FD: e.gpu.FD(), Size: e.gpu.Size()}}})
	if err != nil {
		return fmt.Errorf("guest %s: %w", e.name, err)
	}
	node, err := transfer.Open(n, []netip.Prefix{e.addr(e.opt.Family)}, e.opt.MTU, e.opt.loss(), nil)
	if err != nil {
		return fmt.Errorf("guest %s: %w", e.name, err)
	}
	e.defers(node.Close)
	e.guest = node
	return nil
}

// boot starts a guest under QEMU, which lives as long as ctx, at most until the end is closed.
func (e *end) boot(ctx context.Context, im *images) error {
	p := e.opt.personality()
	initrd, err := im.initrd.Initrd(agent.Config{Modules: p.Modules, Hostname: "vnic-" + strings.ToLower(e.name), HugePages: p.HugePages, Node0: p.Node})
	if err != nil {
		return err
	}
	defer initrd.Close()
	conf := qemu.Config{Name: "guest " + e.name, QEMU: im.QEMU, Kernel: im.Kernel, Initrd: []io.Reader{initrd}, RAMSize: e.opt.Memory, Cache: im.Cache, Log: e.log,
		BootLimit: bootLimit, TimeLimit: time.Hour + time.Duration(e.opt.Size>>20)*time.Second}
	e.nic.Hardware(&conf)
	if e.opt.Keep {
		console, err := e.opt.keep("console-" + e.name + ".log")
		if err != nil {
			return err
		}
		e.defers(console.Close)
		conf.Console = console
	}
	m, err := qemu.Start(ctx, conf)
	if err != nil {
		return err
	}
	e.machine = m
	e.defers(func() error {
		if err := m.Close(); !e.blamed {
			return err
		}
		return nil
	})
	return nil
}

// bootLimit is how long a guest has to boot: it takes seconds, but may share a small machine with much else.
const bootLimit = 3 * time.Minute

// setup has a guest take its NIC and start its stack.
func (e *end) setup(ctx context.Context) error {
	g := transfer.Remote{Agent: e.machine.Agent()}
	s := transfer.Setup{Addrs: []netip.Prefix{e.addr(e.opt.Family)}, MTU: e.opt.MTU, QueuePairs: e.opt.queuePairs(),
		HostQueues: e.opt.hostQueues(), Loss: e.opt.loss()}
	want := e.gpu.Size()
	if e.opt.personality().Node {
		s.Kernel, s.Window = true, e.opt.window()
		want = s.Window
	}
	res, err := g.Setup(ctx, s)
	if err != nil {
		return err
	}
	if len(res.GPUs) != 1 || res.GPUs[0].Size != want {
		return fmt.Errorf("sees GPUs %+v, not the one of %d bytes", res.GPUs, want)
	}
	e.guest, e.window = g, res.GPUs[0].Extents
	return nil
}
