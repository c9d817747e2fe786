package run

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

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

// prepareGuests finds or fetches what guests boot from: stage fetch.
func prepareGuests(ctx context.Context, o *Options) (*images, error) {
	if err := o.stage(ctx, "fetch"); err != nil {
		return nil, err
	}
	if o.InProc {
		return nil, nil
	}
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
	img, err := guestimages.Build(ctx, guestimages.Options{CacheDir: res.Cache, ModulesDir: res.Kernel.Modules, Modules: transfer.Modules})
	if err != nil {
		if errors.Is(err, guestimages.ErrNoModule) {
			err = &qemu.Missing{What: "kernel " + res.Kernel.Version + " lacks what a guest needs: " + err.Error(), Err: err,
				Fix: "use a kernel with uio_pci_generic as a module, with its modules by --modules, or none of --kernel"}
		}
		return nil, err
	}
	return &images{Resolved: res, initrd: img}, nil
}

func (o *Options) note(format string, args ...any) {
	if o.Note != nil {
		o.Note(format, args...)
	}
}

// boot starts both guests and their NICs.
func (l *lab) boot(ctx context.Context, im *images) error {
	if err := l.opt.stage(ctx, "boot"); err != nil {
		return err
	}
	start := time.Now()
	if im == nil {
		l.info = labInfo{qemu: "none", kernel: "none", accel: "none"}
		if err := l.opt.stage(ctx, "setup"); err != nil {
			return err
		}
		return both(ctx, func(context.Context) error { return l.inProc(l.ends[0]) }, func(context.Context) error { return l.inProc(l.ends[1]) })
	}
	l.info = labInfo{qemu: im.QEMU.Version, kernel: im.Kernel.Version, untested: im.Untested, cpu: true}
	// The machines live as long as the lab: they get ctx, so that its end ends them too, but not errgroup's.
	var m [2]*qemu.Machine
	if err := both(ctx, func(context.Context) (err error) { m[0], err = l.start(ctx, l.ends[0], im); return err },
		func(context.Context) (err error) { m[1], err = l.start(ctx, l.ends[1], im); return err }); err != nil {
		return err
	}
	l.info.boot = time.Since(start)
	if err := l.opt.stage(ctx, "setup"); err != nil {
		return err
	}
	return both(ctx, func(ctx context.Context) error { return l.setup(ctx, l.ends[0], m[0]) },
		func(ctx context.Context) error { return l.setup(ctx, l.ends[1], m[1]) })
}

// inProc makes a guest of a driver and a stack in this process, over the same vhost-user socket.
func (l *lab) inProc(e *end) error {
	backend, frontend, err := socketPair()
	if err != nil {
		return err
	}
	e.serve(backend)
	n, err := driver.Attach(driver.FrontendOptions{Options: driver.Options{QueuePairs: queuePairs, HostQueues: 1, Log: l.opt.Log},
		Conn: frontend, MAC: net.HardwareAddr(e.mac[:]), MTU: l.opt.MTU,
		GPUs: []driver.FrontendGPU{{ID: e.gpu.ID(), FD: e.gpu.FD(), Size: e.gpu.Size()}}})
	if err != nil {
		return fmt.Errorf("guest %s: %w", e.name, err)
	}
	node, err := transfer.Open(n, []netip.Prefix{e.addr(l.opt.Family)}, l.opt.MTU, l.opt.lossy(), nil)
	if err != nil {
		return fmt.Errorf("guest %s: %w", e.name, err)
	}
	e.defers(node.Close)
	e.guest = node
	return nil
}

// start boots a guest under QEMU.
func (l *lab) start(ctx context.Context, e *end, im *images) (*qemu.Machine, error) {
	initrd, err := im.initrd.Initrd(agent.Config{Modules: transfer.Modules, Hostname: "vnic-" + strings.ToLower(e.name), HugePages: transfer.HugePages})
	if err != nil {
		return nil, err
	}
	defer initrd.Close()
	fd, err := unix.FcntlInt(uintptr(e.gpu.FD()), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	gpu := os.NewFile(uintptr(fd), "gpu")
	defer gpu.Close()
	m, err := qemu.Start(ctx, qemu.Config{Name: e.name, QEMU: im.QEMU, Kernel: im.Kernel, Initrd: []io.Reader{initrd}, RAMSize: l.opt.Memory,
		GPUs:      []qemu.GPU{{File: gpu, Size: e.gpu.Size()}},
		Netdevs:   []qemu.Netdev{{Connected: e.serve, Queues: queuePairs, MAC: net.HardwareAddr(e.mac[:]), MTU: l.opt.MTU, RXQueueSize: 1024, TXQueueSize: 1024}},
		TimeLimit: time.Hour, Log: l.opt.Log})
	if m != nil {
		e.defers(func() error { return l.end(e, m) })
	}
	if err != nil {
		return nil, err
	}
	e.ram = m.RAM()
	l.info.accel = string(m.Accel())
	return m, nil
}

// end keeps what a user asked to keep, then ends the machine.
func (l *lab) end(e *end, m *qemu.Machine) error {
	var err error
	if l.opt.Keep {
		name := filepath.Join(l.opt.KeepDir, "console-"+e.name+".log")
		if err = os.WriteFile(name, m.Console(), 0o644); err == nil {
			l.opt.note("kept %s", name)
		}
	}
	return errors.Join(err, m.Close())
}

// setup has a guest take its NIC and start its stack.
func (l *lab) setup(ctx context.Context, e *end, m *qemu.Machine) error {
	g := transfer.Remote{Agent: m.Agent()}
	res, err := g.Setup(ctx, transfer.Setup{Addrs: []netip.Prefix{e.addr(l.opt.Family)}, MTU: l.opt.MTU, QueuePairs: queuePairs, Lossy: l.opt.lossy()})
	if err != nil {
		return fmt.Errorf("guest %s: set up its NIC: %w", e.name, err)
	}
	if len(res.GPUs) != 1 || res.GPUs[0].Size != e.gpu.Size() {
		return fmt.Errorf("guest %s sees GPUs %+v, not the one of %d bytes", e.name, res.GPUs, e.gpu.Size())
	}
	e.guest = g
	return nil
}
