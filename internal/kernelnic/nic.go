package kernelnic

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/devmem/kernel"
	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/hugemem"
	"vnic.dev/vnic/internal/inuse"
	"vnic.dev/vnic/internal/rtnl"
	"vnic.dev/vnic/internal/undo"
)

// Modules has the kernel module of the driver gve, which may be built in.
var Modules = []string{driverName}

// HugePages is the number of 2 MiB pages that the guest should reserve for NIC.Memory before Open.
const HugePages = 8

const driverName = "gve"

// Options of Open.
type Options struct {
	Interface string // "" = the only interface of the driver gve
	Addrs     []netip.Prefix
	Gateways  []netip.Addr // of default routes to add
	MTU       int          // 0 = unchanged
	Window    uint64       // bytes of GPU memory; 0 = none
	GPU       *int         // the NIC's number of the Window's GPU; nil = the first that the guest sees
	// HostQueues is the number of receive queues, from 0, that RSS uses; the others can be bound. With 0,
	// or with MemoryOnly, RSS is unchanged.
	HostQueues int
	Log        *slog.Logger
	// Lossless raises TCP's least retransmission timeout and disables tail loss probes, in this network namespace (see
	// rtoSettings). It is for links that never lose packets.
	Lossless bool
	// Guard starts a process that unregisters the buffers that this process leaves registered with the NIC, also if this
	// process is killed.
	Guard bool
	// MemoryOnly means that Open opens no device memory TCP. Device and Queues must then not be called.
	MemoryOnly bool
}

// NIC is a network interface of the kernel's driver, with its control channel and, if requested, GPU memory.
type NIC struct {
	name    string
	mac     net.HardwareAddr
	info    control.Info
	gpu     control.GPUInfo
	channel *channel
	window  *Window // nil: not requested
	memory  *hugemem.Memory
	engine  *Engine
	device  *kernel.Device
	guard   *guard // nil: none
	undo    undo.Stack
}

// Open brings the interface up, takes GPU memory if o.Window is not 0, and without MemoryOnly opens device memory TCP.
// Without MemoryOnly it fails while another process has the interface open without MemoryOnly.
func Open(ctx context.Context, o Options) (n *NIC, err error) {
	n = &NIC{name: o.Interface, memory: new(hugemem.Memory)}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.Close())
			n = nil
		}
	}()
	if n.name == "" {
		if n.name, err = findInterface("/sys", driverName); err != nil {
			return n, err
		}
	}
	if !o.MemoryOnly {
		claim, err := inuse.Share(n.name)
		if err != nil {
			return n, fmt.Errorf("%s: %w", n.name, err)
		}
		n.undo.Add(claim.Close)
	}
	n.undo.Add(n.memory.Free)
	link, err := netlink.LinkByName(n.name)
	if err != nil {
		return n, fmt.Errorf("%s: find: %w", n.name, err)
	}
	n.mac = link.Attrs().HardwareAddr
	added, err := rtnl.BringUp(link, o.MTU, o.Addrs, nil)
	if len(added) > 0 {
		n.undo.Add(func() error { return takeDown(n.name, added) })
	}
	if err != nil {
		return n, fmt.Errorf("%s: %w", n.name, err)
	}
	if err := addRoutes(link, o.Gateways); err != nil {
		return n, fmt.Errorf("%s: %w", n.name, err)
	}
	if o.Lossless {
		if err := raiseMinRTO(); err != nil {
			return n, err
		}
	}
	if n.channel, err = openChannel(n.name, link.Attrs()); err != nil {
		return n, err
	}
	n.undo.Add(n.channel.close)
	if n.info, err = n.channel.ctl.Hello(ctx); err != nil {
		return n, fmt.Errorf("%s: is it a vnic NIC? %w", n.name, err)
	}
	if o.Guard {
		if n.guard, err = startGuard(n.name); err != nil {
			return n, err
		}
		n.undo.Add(n.guard.close)
	}
	if o.Window > 0 {
		if err := n.takeWindow(ctx, o.GPU, o.Window); err != nil {
			return n, err
		}
	}
	if o.MemoryOnly {
		return n, nil
	}
	if n.device, err = kernel.Open(kernel.Options{Interface: n.name, Buffers: n, Log: o.Log, Alone: true}); err != nil {
		return n, err
	}
	n.undo.Add(n.device.Close)
	if o.HostQueues > 0 {
		if err := n.device.SetRSS(o.HostQueues); err != nil {
			return n, fmt.Errorf("%s: RSS over %d queues: %w", n.name, o.HostQueues, err)
		}
	}
	return n, nil
}

// takeWindow takes memory of a GPU as the window, makes its engine, and calls checkWindow. If gpu is nil, it takes the
// first GPU that the guest sees.
func (n *NIC) takeWindow(ctx context.Context, gpu *int, size uint64) error {
	gpus, err := n.channel.ctl.GPUs(ctx)
	if err != nil {
		return fmt.Errorf("asking the NIC for its GPUs: %w", err)
	}
	i := slices.IndexFunc(gpus, func(g control.GPUInfo) bool {
		return g.Attach != control.AttachNone && (gpu == nil || int(g.ID) == *gpu)
	})
	if i < 0 {
		which := "no GPU"
		if gpu != nil {
			which = fmt.Sprintf("no GPU %d", *gpu)
		}
		return fmt.Errorf("the NIC knows of %s that this guest sees: %w", which, unix.ENODEV)
	}
	n.gpu = gpus[i]
	if size > n.gpu.Size {
		return fmt.Errorf("%d bytes of GPU %d, which has %d: %w", size, n.gpu.ID, n.gpu.Size, unix.ENOMEM)
	}
	maps, err := n.channel.ctl.GPUMaps(ctx)
	if err != nil {
		return fmt.Errorf("asking the NIC where GPU memory is: %w", err)
	}
	if n.gpu.Attach == control.AttachNode {
		n.window, err = NewWindow(int(n.gpu.ID), int(n.gpu.Node), size, maps)
	} else {
		n.window, err = NewDriverWindow(int(n.gpu.ID), size, maps)
	}
	if err != nil {
		return err
	}
	n.undo.Add(n.window.Close)
	n.engine = newEngine(n.channel.ctl, n.window, n.memory)
	return n.checkWindow(ctx)
}

// checkWindow makes n.engine write a mark to the first and the last devmem.PageSize bytes of each extent, checks that
// the CPU reads it there, and clears it. EIO: the CPU reads something else.
func (n *NIC) checkWindow(ctx context.Context) error {
	for i, e := range n.window.extents {
		for j, off := range []uint64{e.Off, e.Off + e.Size - devmem.PageSize} {
			mark := byte(2*i + j + 1)
			if err := n.mark(ctx, off, mark); err != nil {
				return fmt.Errorf("window at %#x, GPU memory at %#x: %w", off, e.GPUOff+off-e.Off, err)
			}
		}
	}
	return nil
}

func (n *NIC) mark(ctx context.Context, off uint64, mark byte) error {
	ids, err := n.register(off, devmem.PageSize)
	if err != nil {
		return err
	}
	_, err = n.engine.RunJob(ctx, control.Job{Op: control.JobPoison, GPU: n.gpu.ID, Off: off, Len: devmem.PageSize,
		Seed: uint64(mark)})
	if err := errors.Join(err, n.unregister(ids)); err != nil {
		return err
	}
	page := n.window.page(off)[:devmem.PageSize]
	if !bytes.Equal(page, bytes.Repeat([]byte{mark}, devmem.PageSize)) {
		return fmt.Errorf("the GPU's memory is not where the NIC reports it: %#x, %#x expected: %w", page[:8], mark,
			unix.EIO)
	}
	clear(page)
	return nil
}

// MAC returns the interface's MAC address.
func (n *NIC) MAC() net.HardwareAddr { return n.mac }

// Queues returns the interface's number of receive queues.
func (n *NIC) Queues() int { return n.device.Queues() }

// GPU returns the GPU of the window; zero without a window.
func (n *NIC) GPU() control.GPUInfo { return n.gpu }

// Window returns the GPU memory, or nil if none was requested.
func (n *NIC) Window() *Window { return n.window }

// Memory returns the allocator of guest RAM that the NIC's engines can access. Close frees this RAM.
func (n *NIC) Memory() *hugemem.Memory { return n.memory }

// Engine returns the engine that runs jobs on the window's GPU; nil without a window.
func (n *NIC) Engine() *Engine { return n.engine }

// Control returns the client of the NIC's control channel.
func (n *NIC) Control() *control.Client { return n.channel.ctl }

// Device returns the kernel's device memory TCP on the interface. The Close method of the result closes the NIC.
func (n *NIC) Device() devmem.Device { return device{n.device, n} }

type device struct {
	*kernel.Device
	nic *NIC
}

func (d device) Close() error { return d.nic.Close() }

// Close closes the device, frees the memory and removes the addresses that Open added. The interface stays up,
// with its MTU, and TCP's settings stay. EBUSY: a registration of the window is not released; the rest is closed.
func (n *NIC) Close() error { return n.undo.All() }
