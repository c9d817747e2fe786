package qemu

import (
	"context"
	"fmt"
	"strconv"
	"sync"

	"vnic.dev/vnic/internal/limits"
)

// A device with Hotplug can be removed while the guest runs: a virtio-net-pci, or GPU memory as a BAR. QEMU
// presses the attention button; Linux waits for five seconds, unbinds the driver, and turns the slot off
// (native PCIe hotplug). QEMU 11.1 aborts at the removal of a vfio-user-pci.

// DevicePrefix begins QEMU's names of a Machine's NICs, GPUs and disks.
const DevicePrefix = "dev-"

// nicDevice and gpuDevice return QEMU's names of devices.
func nicDevice(i int) string { return DevicePrefix + "net" + strconv.Itoa(i) }
func gpuDevice(i int) string { return DevicePrefix + "gpu" + strconv.Itoa(i) }

func (c *Config) hotplug() map[string]bool {
	places := make(map[string]bool)
	for _, n := range c.Netdevs {
		places[n.Place] = n.Hotplug
	}
	for _, g := range c.GPUs {
		places[g.Place] = g.Hotplug
	}
	return places
}

func (c *Config) checkHotplug() error {
	for i, n := range c.Netdevs {
		if n.Hotplug && (c.Tree == nil || n.Place == "" || n.VFIOUser) {
			return fmt.Errorf("config: network device %d cannot be taken out: only a virtio-net-pci with a Place in Tree can", i)
		}
	}
	for i, g := range c.GPUs {
		if g.Hotplug && (c.Tree == nil || g.Place == "" || g.Node) {
			return fmt.Errorf("config: GPU %d cannot be taken out: only one with a Place in Tree that is no NUMA node can", i)
		}
	}
	return nil
}

// unplugs are removals in progress.
type unplugs struct {
	removable map[string]bool // by device
	waiting   sync.Map        // by device: the chan error to which unplugged sends
}

func (u *unplugs) init(c *Config) {
	u.removable = map[string]bool{}
	for i, n := range c.Netdevs {
		u.removable[nicDevice(i)] = n.Hotplug
	}
	for i, g := range c.GPUs {
		u.removable[gpuDevice(i)] = g.Hotplug
	}
}

// UnplugNIC asks the guest to release NIC i of Config.Netdevs. The channel receives nil when the NIC has been removed,
// or an error (ErrKept) if the guest refuses or takes longer than limits.Unplug; it is closed if the machine ends
// first. The error is ErrFixed if the NIC cannot be removed, or another one if an earlier request has not ended or QMP
// fails.
func (m *Machine) UnplugNIC(i int) (<-chan error, error) { return m.takeOut(nicDevice(i)) }

// UnplugGPU is UnplugNIC for GPU i of Config.GPUs.
func (m *Machine) UnplugGPU(i int) (<-chan error, error) { return m.takeOut(gpuDevice(i)) }

func (m *Machine) takeOut(device string) (<-chan error, error) {
	u := &m.unplugs
	if !u.removable[device] {
		return nil, fmt.Errorf("%s: %w", m.name, ErrFixed)
	}
	event, done := make(chan error, 1), make(chan error, 1)
	if _, under := u.waiting.LoadOrStore(device, event); under {
		return nil, fmt.Errorf("%s: %s is on its way out already", m.name, device)
	}
	ctx, cancel := context.WithTimeout(context.Background(), limits.Unplug.Here())
	if _, err := m.qmp.do(ctx, commandUnplug, map[string]string{"id": device}); err != nil {
		cancel()
		u.waiting.Delete(device)
		return nil, fmt.Errorf("%s: %w", m.name, err)
	}
	go func() {
		defer u.waiting.Delete(device)
		defer cancel()
		select {
		case err := <-event:
			done <- err
		case <-m.done:
			close(done)
		case <-ctx.Done():
			done <- fmt.Errorf("%w in %v", ErrKept, limits.Unplug.Here())
		}
	}()
	return done, nil
}

// unplugged passes on a removal's result, if a removal of the device is in progress.
func (m *Machine) unplugged(device string, err error) {
	if event, waits := m.unplugs.waiting.Load(device); waits {
		select {
		case event.(chan error) <- err:
		default: // a result was sent already
		}
	}
}
