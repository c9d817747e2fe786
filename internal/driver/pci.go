package driver

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"reflect"
	"runtime/debug"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/hugemem"
	"vnic.dev/vnic/internal/inuse"
	"vnic.dev/vnic/internal/virtionet"
	"vnic.dev/vnic/vhostuser"
)

// pci is the transport in a guest: a virtio-net PCI device (virtio 1.3, 4.1).
//
// Interrupts are INTx through uio_pci_generic: its handler sets INTX_DISABLE and makes /dev/uioN readable.
// Reading the ISR byte deasserts the interrupt; clearing INTX_DISABLE allows the next one.
type pci struct {
	dev    pciDev
	log    *slog.Logger
	cfg    pciConfig
	intr   *os.File
	sl     *sleeper
	bars   map[uint8][]byte
	claim  io.Closer // keeps other programs that claim devices (package inuse) from this one; nil: not claimed
	common common
	notify regs
	factor uint32 // notify_off_multiplier
	isr    regs
	device regs
	mem    *hugemem.Memory

	command  uint16 // command register of the configuration space, with interrupts on
	features uint64
	queues   map[int]int // by queue that is set up: its offset in notify
	halted   bool

	gone    atomic.Bool // the device was removed: touch accesses no registers any more
	kept    bool        // the device was removed, and may still write to mem, which close then does not free
	events  *os.File
	hearing sync.WaitGroup
}

// OpenPCI takes a virtio-net PCI device from the kernel and starts it. The NIC's GPUs are the BARs 2 of all ivshmem
// devices, numbered in the order of their PCI addresses ([NIC.IdentifyGPUs] changes the numbers). It needs root, huge
// pages and the module uio_pci_generic. EBUSY: this or another vnic program uses the device.
func OpenPCI(o PCIOptions) (*NIC, error) { return openPCI("/", sysfs("/").hugePages(), o) }

func openPCI(sys sysfs, mem *hugemem.Memory, o PCIOptions) (*NIC, error) {
	o.fill()
	gpus, err := sys.gpus()
	if err != nil {
		return nil, err
	}
	d, err := sys.findNIC(o.Address)
	if err != nil {
		return nil, err
	}
	p := &pci{dev: d, log: o.Log, bars: map[uint8][]byte{}, queues: map[int]int{}, mem: mem}
	if err := p.take(); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", d.addr, err), p.close())
	}
	n, err := open(p, &o.Options, nil, 0, gpus)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", d.addr, err)
	}
	return n, nil
}

func (s sysfs) gpus() ([]GPUInfo, error) {
	devs, err := s.find(idIVSHMEM)
	if err != nil {
		return nil, err
	}
	var gpus []GPUInfo
	for i, d := range devs {
		bars, err := d.bars()
		if err != nil {
			return nil, fmt.Errorf("GPU %s: %w", d.addr, err)
		}
		bar := bars[ivshmemBAR]
		if bar.size == 0 {
			return nil, fmt.Errorf("GPU %s: BAR %d has no place: the memory does not fit below the bridge", d.addr, ivshmemBAR)
		}
		cfg, err := d.openConfig()
		if err != nil {
			return nil, fmt.Errorf("GPU %s: %w", d.addr, err)
		}
		err = errors.Join(cfg.setCommand(commandMemory, 0), cfg.f.Close())
		if err != nil {
			return nil, fmt.Errorf("GPU %s: turning its BARs on: %w", d.addr, err)
		}
		gpus = append(gpus, GPUInfo{ID: i, Addr: bar.addr, Size: bar.size, PCI: d.addr})
	}
	return gpus, nil
}

const ivshmemBAR = 2

func (p *pci) take() error {
	var err error
	if p.claim, err = inuse.Claim(p.dev.dir); err != nil {
		return err
	}
	name, err := p.dev.bindUIO()
	if err != nil {
		return err
	}
	if p.intr, err = p.dev.openUIO(name); err != nil {
		return err
	}
	if p.sl, err = newSleeper(p.intr, uioEvent); err != nil {
		return err
	}
	p.sl.ears = ears{nap: firstNap, heard: heardNap}
	if p.cfg, err = p.dev.openConfig(); err != nil {
		return err
	}
	old, err := p.cfg.read16(pciCommand)
	if err != nil {
		return err
	}
	p.command = old&^commandINTxDisable | commandMemory | commandMaster
	if err := p.cfg.write16(pciCommand, p.command|commandINTxDisable); err != nil {
		return err
	}
	p.sl.called = true // so that the first arm reads the ISR byte and clears INTX_DISABLE
	return p.mapStructures()
}

func (p *pci) mapStructures() error {
	space, err := p.cfg.read()
	if err != nil {
		return err
	}
	caps, err := virtioCaps(&space)
	if err != nil {
		return err
	}
	bars, err := p.dev.bars()
	if err != nil {
		return err
	}
	var pieces [len(caps)]regs
	for kind := capCommon; kind < len(caps); kind++ {
		c := caps[kind]
		size := bars[c.bar].size
		if size == 0 || uint64(c.off) > size || uint64(c.length) > size-uint64(c.off) {
			return fmt.Errorf("virtio structure %d: %#x bytes at %#x of BAR %d, which has %#x", kind, c.length, c.off, c.bar,
				size)
		}
		if p.bars[c.bar] == nil {
			if p.bars[c.bar], err = p.dev.mapBAR(int(c.bar), size); err != nil {
				return err
			}
		}
		pieces[kind] = p.bars[c.bar][c.off : c.off+c.length : c.off+c.length]
	}
	p.common, p.notify, p.isr, p.device = common{pieces[capCommon]}, pieces[capNotify], pieces[capISR], pieces[capDevice]
	p.factor = caps[capNotify].multiplier
	if len(p.common.regs) < commonLen || len(p.isr) < 1 {
		return fmt.Errorf("virtio structures: common of %d bytes, ISR of %d: too short", len(p.common.regs), len(p.isr))
	}
	return p.enter(pieces[capCommon:])
}

// enter makes the first access to each page of the structures directly after an access to the configuration space,
// which causes a VM exit. If KVM (of Linux 6.14 or later) runs on an emulated processor (QEMU's SVM), the first
// access to a page of a BAR kills the guest if an exception, such as a page fault, has occurred since the last VM
// exit (docs/found.md).
func (p *pci) enter(pieces []regs) error {
	var code [1]byte
	regs(code[:]).read8(0)
	return p.touch(func() error {
		for _, r := range pieces {
			for off := 0; off < len(r); off += PageSize {
				if _, err := p.cfg.read16(pciCommand); err != nil {
					return err
				}
				r.read8(off)
			}
		}
		return nil
	})
}

func (p *pci) errRemoved() error { return removed(p.dev.addr) }

func (p *pci) lost() error {
	p.lose()
	return p.errRemoved()
}

func (p *pci) lose() {
	if p.gone.CompareAndSwap(false, true) && p.sl != nil {
		p.sl.wake()
	}
}

// touch runs f, which accesses registers. When a device is removed, the mappings of its BARs go too: an access then
// faults, which ends f, and touch returns ENODEV. Later calls of touch return that without running f. A fault at
// another address is a panic.
func (p *pci) touch(f func() error) (err error) {
	if p.gone.Load() {
		return p.errRemoved()
	}
	defer func() {
		v := recover()
		if v == nil {
			return
		}
		if addr, ok := dma.FaultAddr(v); !ok || !p.inBAR(addr) {
			panic(v)
		}
		err = p.lost()
	}()
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	return f()
}

func (p *pci) inBAR(addr uintptr) bool {
	for _, b := range p.bars {
		start := reflect.ValueOf(b).Pointer()
		if addr-start < uintptr(len(b)) {
			return true
		}
	}
	return false
}

func (p *pci) negotiate() (f uint64, err error) {
	err = p.touch(func() (err error) {
		if err := p.common.reset(); err != nil {
			return err
		}
		p.common.addStatus(statusAcknowledge)
		p.common.addStatus(statusDriver)
		// QEMU (11.1) answers a queue reset itself and does not pass it on to a vhost-user backend, which continues
		// with the old ring: measured. So the driver does not use it.
		if f, err = chooseFeatures(p.common.features() &^ vhostuser.FeatureRingReset); err != nil {
			p.common.addStatus(statusFailed)
			return err
		}
		p.common.setFeatures(f)
		p.common.addStatus(statusFeaturesOK)
		if p.common.read8(regDeviceStatus)&statusFeaturesOK == 0 {
			p.common.addStatus(statusFailed)
			return fmt.Errorf("%w: it refuses %s", ErrFeature, featureString(f))
		}
		p.features = f
		return nil
	})
	return f, err
}

// config reads the device structure again, at most 100 times, if the configuration generation has changed meanwhile
// (4.1.4.3.1, 2.5.1).
func (p *pci) config(off int, b []byte) error {
	return p.touch(func() error {
		if off > len(p.device) || len(b) > len(p.device)-off {
			return fmt.Errorf("device configuration: %d bytes at %d of %d", len(b), off, len(p.device))
		}
		for range 100 {
			before := p.common.read8(regConfigGeneration)
			if len(b) == 2 {
				le.PutUint16(b, p.device.read16(off)) // a field of 16 bits must be read with its width
			} else {
				for i := range b {
					b[i] = p.device.read8(off + i)
				}
			}
			if p.common.read8(regConfigGeneration) == before {
				return nil
			}
		}
		return fmt.Errorf("%w: device configuration changes all the time", ErrBroken)
	})
}

func (p *pci) pairs() int { return 1 } // not used: config never returns errNoConfig

// controlQueue returns the number of the control queue, which comes after all pairs that the device has, used or not
// (5.1.2), or -1 if the configuration space cannot be read.
func (p *pci) controlQueue() int {
	if p.features&virtionet.FMQ == 0 {
		return 2
	}
	var b [2]byte
	if p.config(configPairs, b[:]) != nil {
		return -1
	}
	return 2 * int(le.Uint16(b[:]))
}

func (p *pci) alloc(n int) (memory, error) {
	b, addr, err := p.mem.AllocDMA(n)
	return memory{b, addr}, err
}

func (p *pci) ringSize(q int, want uint16) uint16 {
	most := uint16(0)
	_ = p.touch(func() error {
		if q < int(p.common.read16(regNumQueues)) {
			most = p.common.selectQueue(q)
		}
		return nil
	})
	for want > most {
		want /= 2
	}
	return want
}

func (p *pci) setupQueue(q int, r ringAddrs) error {
	return p.touch(func() error {
		off, err := p.common.setQueue(q, r)
		if err != nil {
			return err
		}
		off64 := uint64(off) * uint64(p.factor)
		if off64+2 > uint64(len(p.notify)) {
			return fmt.Errorf("%w: virtqueue %d: notification at %#x of %#x", ErrBroken, q, off64, len(p.notify))
		}
		p.queues[q] = int(off64)
		return nil
	})
}

func (p *pci) start() error {
	// Before the device starts: if INTx is off at DRIVER_OK, QEMU gives a vhost-user backend no call descriptor, at
	// least until the guest is stopped and continued.
	if err := p.cfg.write16(pciCommand, p.command); err != nil {
		return err
	}
	return p.touch(func() error {
		for q := range p.queues {
			p.common.enableQueue(q)
		}
		p.common.addStatus(statusDriverOK)
		if s := p.common.read8(regDeviceStatus); s&statusDriverOK == 0 || s&statusNeedsReset != 0 {
			return fmt.Errorf("%w: device status is %#x after DRIVER_OK: is the backend connected?", ErrBroken, s)
		}
		return nil
	})
}

func (p *pci) stopQueue(int) error  { return errNoReset }
func (p *pci) startQueue(int) error { return errNoReset }

func (p *pci) emulated() bool { return true }

func (p *pci) kick(q int) {
	_ = p.touch(func() error {
		p.notify.write16(p.queues[q], uint16(q))
		return nil
	})
}

// arm deasserts an interrupt that came, and allows the next one. If none came, it does nothing, or, for a device
// whose interrupts seem not to arrive (ears.deaf), it reads the ISR byte.
func (p *pci) arm() (changed bool, err error) {
	if p.gone.Load() {
		return false, p.errRemoved()
	}
	if !p.sl.called && !p.sl.ears.deaf() {
		return false, nil
	}
	const configInterrupt = 2 // bit 1 of the ISR byte (4.1.4.5)
	if err := p.touch(func() error {
		changed = p.isr.read8(0)&configInterrupt != 0
		if changed && p.common.read8(regDeviceStatus)&statusNeedsReset != 0 {
			return fmt.Errorf("%w: the device has failed and wants a reset", ErrBroken)
		}
		return nil
	}); err != nil || !p.sl.called {
		return changed, err
	}
	p.sl.called = false
	if err := p.cfg.write16(pciCommand, p.command); errors.Is(err, unix.ENODEV) { // sysfs has removed the file
		p.lose()
		return changed, p.errRemoved()
	} else if err != nil {
		return changed, err
	}
	return changed, nil
}

func (p *pci) sleeper() *sleeper { return p.sl }

func (p *pci) watch(gone func(error), gpuGone func(addr string)) error {
	events, err := listenUevents()
	if err != nil {
		p.log.Debug("the kernel's events are not to be had", "error", err)
		return nil
	}
	p.events = events
	p.hearing.Go(func() { hearRemovals(events, p.removal(gone, gpuGone)) })
	return nil
}

func (p *pci) removal(gone func(error), gpuGone func(addr string)) func(addr string) {
	return func(addr string) {
		if addr == p.dev.addr {
			p.lose()
			gone(p.errRemoved())
			return
		}
		gpuGone(addr)
	}
}

// halt resets the device, and turns bus mastering and INTx off. For a device that was removed it returns no error,
// but sets kept unless that succeeded.
func (p *pci) halt() error {
	if p.halted || p.common.regs == nil {
		return nil
	}
	err := p.touch(p.common.reset)
	err = errors.Join(err, p.cfg.setCommand(commandINTxDisable, commandMaster))
	if p.gone.Load() {
		p.kept, err = err != nil, nil
	}
	p.halted = err == nil
	return err
}

func (p *pci) close() error {
	if p.events != nil {
		p.events.Close()
		p.hearing.Wait()
	}
	err := p.halt()
	switch {
	case p.kept:
		p.log.Warn("the memory of a device that has been removed stays allocated", "device", p.dev.addr)
	case err == nil:
		err = p.mem.Free()
	default:
		err = fmt.Errorf("%w: its memory stays allocated, as it may still write there", err)
	}
	p.common, p.notify, p.isr, p.device = common{}, nil, nil, nil
	for _, b := range p.bars {
		unix.Munmap(b)
	}
	p.bars = nil
	if p.cfg.f != nil {
		p.cfg.f.Close()
	}
	if p.intr != nil {
		p.intr.Close()
	}
	if p.claim != nil {
		p.claim.Close()
		p.claim = nil
	}
	return err
}
