package qemu

import (
	"context"
	"fmt"
	"strconv"
	"sync"

	"vnic.dev/vnic/internal/limits"
)

// A device with Hotplug, below a port of a Tree, can be taken out while the guest runs: a virtio-net-pci, or GPU memory
// that is a BAR. It is the orderly way (native PCIe hotplug): QEMU presses the port's attention button, the guest's
// kernel blinks for five seconds, takes the device from its driver, and turns the slot off, upon which QEMU removes the
// device. A vfio-user-pci cannot be taken out: QEMU 11.1 aborts. GPU memory that is a NUMA node's is RAM to its guest.

// DevicePrefix begins the names of all devices that a Machine can take out.
const DevicePrefix = "dev-"

// nicDevice and gpuDevice are QEMU's names of devices, by their place in Config.
func nicDevice(i int) string { return DevicePrefix + "net" + strconv.Itoa(i) }
func gpuDevice(i int) string { return DevicePrefix + "gpu" + strconv.Itoa(i) }

const (
	outNICs = iota // in Machine.unplug
	outGPUs
)

// devicesOut are the devices of NICs and GPUs that can be taken out.
func (c *Config) devicesOut() (list [2][]string) {
	add := func(kind int, hotplug bool, name string) {
		if !hotplug {
			name = ""
		}
		list[kind] = append(list[kind], name)
	}
	for i, n := range c.Netdevs {
		add(outNICs, n.Hotplug, nicDevice(i))
	}
	for i, g := range c.GPUs {
		add(outGPUs, g.Hotplug, gpuDevice(i))
	}
	return list
}

// hotplug are the places of what can be taken out.
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

// checkHotplug refuses Hotplug of what no QEMU lets go of.
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

// unplugs are devices that are on their way out.
type unplugs struct {
	mu      sync.Mutex
	waiting map[string]chan error // under mu, by device; of capacity 1
}

// UnplugNIC asks the guest to let go of NIC i of Config.Netdevs. The channel tells when the device is out of the machine
// (nil), or why it is not: the guest did not let go of it (ErrKept). It is closed when the machine ends before that.
// Without a channel the error says why it is not asked; one that cannot be taken out at all is ErrFixed.
func (m *Machine) UnplugNIC(i int) (<-chan error, error) {
	return m.takeOut(m.unplug[outNICs][i])
}

// UnplugGPU is UnplugNIC for GPU i of Config.GPUs.
func (m *Machine) UnplugGPU(i int) (<-chan error, error) {
	return m.takeOut(m.unplug[outGPUs][i])
}

func (m *Machine) takeOut(device string) (<-chan error, error) {
	if device == "" {
		return nil, fmt.Errorf("%s: %w", m.name, ErrFixed)
	}
	u := &m.unplugs
	event, done := make(chan error, 1), make(chan error, 1)
	u.mu.Lock()
	_, under := u.waiting[device]
	if u.waiting == nil {
		u.waiting = make(map[string]chan error)
	}
	if !under {
		u.waiting[device] = event
	}
	u.mu.Unlock()
	if under {
		return nil, fmt.Errorf("%s: %s is on its way out already", m.name, device)
	}
	forget := func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		delete(u.waiting, device)
	}
	ctx, cancel := context.WithTimeout(context.Background(), limits.Unplug.Here())
	if _, err := m.qmp.do(ctx, commandUnplug, unplugArgs{device}); err != nil {
		cancel()
		forget()
		return nil, fmt.Errorf("%s: %w", m.name, err)
	}
	go func() {
		defer forget()
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

// unplugged tells who waits for it that a device is out, or stays.
func (m *Machine) unplugged(device string, err error) {
	m.unplugs.mu.Lock()
	defer m.unplugs.mu.Unlock()
	if done := m.unplugs.waiting[device]; done != nil {
		select {
		case done <- err:
		default: // it has been told
		}
	}
}
