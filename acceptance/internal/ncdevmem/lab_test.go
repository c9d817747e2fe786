package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/control"
	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/driver"
	"vnic.dev/vnic/gpumem"
	guestimages "vnic.dev/vnic/guest-images"
	"vnic.dev/vnic/guest-images/agent"
	"vnic.dev/vnic/nic"
	"vnic.dev/vnic/nic/gve"
	"vnic.dev/vnic/nic/virtio"
	"vnic.dev/vnic/qemu"
	"vnic.dev/vnic/stack"
	"vnic.dev/vnic/vfiouser"
	"vnic.dev/vnic/wire"
)

const (
	guestRAM  = 512 << 20
	gpuMemory = 128 << 20 // ncdevmem's buffer is 62.5 MiB, and the node has pages of the kernel's
	mtu       = 1500
)

// Addresses of both sides, IPv4 and IPv6.
var (
	guestAddrs = [2]netip.Prefix{netip.MustParsePrefix("10.118.110.1/24"), netip.MustParsePrefix("fd76:6e69::1/64")}
	peerAddrs  = [2]netip.Prefix{netip.MustParsePrefix("10.118.110.2/24"), netip.MustParsePrefix("fd76:6e69::2/64")}
)

// lab is the guest with its NIC and its GPU, and the peer.
type lab struct {
	log     *slog.Logger
	files   *dma.Files
	sw      *wire.Switch
	gpu     *gpumem.GPU
	gpuFile *os.File
	port    *nic.Port // the guest's
	machine *qemu.Machine
	peer    *stack.Stack
	lines   []byte // of the guest's file /data
	ports   uint16 // the last one of an ordinary connection
	close   []func() error
}

func (l *lab) defers(f func() error) { l.close = append(l.close, f) }

// Close ends everything, the last first.
func (l *lab) Close() (err error) {
	for i := len(l.close) - 1; i >= 0; i-- {
		err = errors.Join(err, l.close[i]())
	}
	l.close = nil
	return err
}

// newLab starts both sides. The lab is to be closed, also after an error.
func newLab(ctx context.Context, tools string) (l *lab, err error) {
	l = &lab{files: dma.NewFiles(), log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})), ports: 6000}
	l.sw = wire.NewSwitch(l.log)
	l.defers(l.sw.Close)
	if l.gpu, err = gpumem.NewGPU(l.files, 0, gpuMemory, gpumem.Options{}); err != nil {
		return l, err
	}
	l.defers(l.gpu.Close)
	fd, err := unix.FcntlInt(uintptr(l.gpu.FD()), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return l, os.NewSyscallError("fcntl", err)
	}
	l.gpuFile = os.NewFile(uintptr(fd), "gpu")
	l.defers(l.gpuFile.Close)
	if err := l.newPeer(); err != nil {
		return l, fmt.Errorf("peer: %w", err)
	}
	if err := l.boot(ctx, tools); err != nil {
		return l, err
	}
	return l, l.network(ctx)
}

// newPeer makes a guest of a driver and a stack in this process, as `vnic run --guest inproc` does.
func (l *lab) newPeer() error {
	mac := wire.MAC{2, 0, 0, 0, 0, 2}
	dev, err := virtio.New(virtio.Config{Files: l.files, Port: nic.Config{Name: "peer", MAC: mac, MTU: mtu, QueuePairs: 2, Log: l.log}})
	if err != nil {
		return err
	}
	l.defers(func() error { dev.Close(); return nil })
	if err := dev.Port().Attach(l.sw, wire.LinkOptions{}); err != nil {
		return err
	}
	back, front, err := socketPair()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	dma.Go(func() { served <- dev.Serve(ctx, back) })
	l.defers(func() error {
		cancel()
		if err := <-served; err != nil && !errors.Is(err, context.Canceled) {
			return fmt.Errorf("peer's NIC: %w", err)
		}
		return nil
	})
	n, err := driver.Attach(driver.FrontendOptions{Options: driver.Options{QueuePairs: 2, HostQueues: 2, Log: l.log}, Conn: front,
		MAC: net.HardwareAddr(mac[:]), MTU: mtu})
	if err != nil {
		return err
	}
	if l.peer, err = stack.New(n, n.Control(), stack.Options{Addresses: peerAddrs[:], MTU: mtu}); err != nil {
		_ = n.Close()
		return err
	}
	l.defers(l.peer.Close)
	return nil
}

func socketPair() (a, b *net.UnixConn, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	var conns [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "vhost-user")
		c, cerr := net.FileConn(f)
		err = errors.Join(err, cerr, f.Close())
		if u, ok := c.(*net.UnixConn); ok {
			conns[i] = u
		}
	}
	if err != nil {
		for _, c := range conns {
			if c != nil {
				_ = c.Close()
			}
		}
		return nil, nil, err
	}
	return conns[0], conns[1], nil
}

// boot starts the guest on a gVNIC of ours.
func (l *lab) boot(ctx context.Context, tools string) error {
	r, err := qemu.Fetch(ctx, qemu.Options{VFIOUser: true})
	if err != nil {
		return err
	}
	img, err := guestimages.Build(ctx, guestimages.Options{CacheDir: r.Cache, ModulesDir: r.Kernel.Modules, Modules: []string{"gve"}})
	if err != nil {
		return err
	}
	// Without duplicate address detection IPv6 addresses can be used at once.
	initrd, err := img.Initrd(agent.Config{Modules: []string{"gve"}, Hostname: "ncdevmem", Node0: true,
		Sysctl: map[string]string{"net.ipv6.conf.default.accept_dad": "0"}})
	if err != nil {
		return err
	}
	defer initrd.Close()
	l.lines = makeLines(8, sent)
	programs, err := programs(tools, map[string][]byte{"data": l.lines})
	if err != nil {
		return err
	}
	dev, err := gve.New(gve.Options{Port: nic.Config{Name: "guest", MAC: wire.MAC{2, 0, 0, 0, 0, 1}, MTU: mtu, Log: l.log,
		GPUs: []nic.GPU{{GPU: l.gpu, Path: gpumem.Path{Kind: gpumem.PathBus}, Info: control.GPUInfo{Attach: control.AttachNode, Node: 1}}}}},
		dma.NewSpace("guest", l.files))
	if err != nil {
		return err
	}
	l.defers(func() error { dev.Close(); return nil })
	l.port = dev.Port()
	if err := l.port.Attach(l.sw, wire.LinkOptions{}); err != nil {
		return err
	}
	serveCtx, cancel := context.WithCancel(context.Background())
	var serving sync.WaitGroup
	l.defers(func() error { // by itself, as QEMU is gone; its end of the connection may be seen a moment later
		timer := time.AfterFunc(2*time.Second, cancel)
		serving.Wait()
		timer.Stop()
		cancel()
		return nil
	})
	start := time.Now()
	l.machine, err = qemu.Start(ctx, qemu.Config{
		Name: "guest", QEMU: r.QEMU, Kernel: r.Kernel, Initrd: []io.Reader{initrd, programs}, RAMSize: guestRAM, Cache: r.Cache, Log: l.log,
		BootLimit: 2 * time.Minute, TimeLimit: timeLimit, GPUs: []qemu.GPU{{File: l.gpuFile, Size: gpuMemory, Node: true}},
		Netdevs: []qemu.Netdev{{VFIOUser: true, Connected: func(conn *net.UnixConn) {
			serving.Add(1)
			dma.Go(func() {
				defer serving.Done()
				if err := vfiouser.NewServer(dev, dev.Space(), l.log).Serve(serveCtx, conn); err != nil && serveCtx.Err() == nil {
					l.log.Error("connection to QEMU", "err", err)
				}
			})
		}}},
	})
	if err != nil {
		return err
	}
	l.defers(func() error { return l.machine.Close() })
	fmt.Printf("== guest: QEMU %s (%s), kernel %s, up after %.1f s\n", r.QEMU.Version, l.machine.Accel(), r.Kernel.Version, time.Since(start).Seconds())
	return nil
}

// shutDown powers the guest off: it must be well enough for that.
func (l *lab) shutDown(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	return l.machine.PowerOff(ctx)
}

// addrs gives the addresses of guest and peer.
func addrs(v6 bool) (guest, peer netip.Addr) {
	i := 0
	if v6 {
		i = 1
	}
	return guestAddrs[i].Addr(), peerAddrs[i].Addr()
}

// meter counts a connection on the guest's NIC.
func (l *lab) meter(guest, peer netip.AddrPort) (read func() (control.MeterCounters, error), err error) {
	id, err := l.port.AddMeter(control.Meter{Proto: unix.IPPROTO_TCP, Local: guest, Remote: peer})
	if err != nil {
		return nil, err
	}
	return func() (control.MeterCounters, error) {
		c, err := l.port.ReadMeter(id)
		return c, errors.Join(err, l.port.DelMeter(id))
	}, nil
}

// placed checks where the payload of one direction was: in the GPU's file, or in host memory.
func (j *judge) placed(d control.DirCounters, size uint64, node bool) {
	gpu, host, where := d.GPUFileBytes, d.HostBytes, "in the GPU's file (file-level count)"
	if !node {
		gpu, host, where = host, gpu, "in host memory"
	}
	j.check(gpu >= size && host == 0 && d.DeviceBytes == 0 && d.BouncedBytes == 0,
		"meter: %d payload bytes %s, of %d; %d elsewhere; %d came again", gpu, where, size, host, d.RetransBytes)
}
