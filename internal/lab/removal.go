package lab

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// GuestFaults are functions that apply faults to a machine's guest. The lab calls one at a time. A nil function: the
// guest does not support the fault.
type GuestFaults struct {
	// RemoveNIC asks the guest to release NIC i of Machine.Ports, RemoveGPU GPU i of Machine.GPUs. The channel
	// receives nil when the device has been removed, or an error; it is closed if the guest ends first.
	RemoveNIC, RemoveGPU func(i int) (<-chan error, error)
	// LateTokens makes receivers at NIC i of Machine.Ports return devmem tokens later, by late.
	LateTokens func(i int, late time.Duration) error
}

// MaxLateTokens is the maximum delay of returned tokens.
const MaxLateTokens = 10 * time.Second

// SetGuest calls set, which sets functions for faults of the machine's guest, while the lab makes no change.
func (m *Machine) SetGuest(set func(*GuestFaults)) {
	m.lab.changing.Lock()
	defer m.lab.changing.Unlock()
	set(&m.faults)
}

// Why a device cannot be removed.
var (
	errNoGuest = errors.New("its guest is none of this vnic's: have its QEMU do it (device_del)")
	errNoPort  = errors.New("it is on the root complex, from which QEMU takes nothing out: those of a lab file with " +
		"sockets are below ports")
	errFixed = errors.New("the port above it cannot let go of it: give it hotplug: true in the lab file")
)

const (
	whyNoGVNIC = "QEMU aborts at device_del of vfio-user"
	whyNoNode  = "its memory is a NUMA node's, as gve has it, which its guest's kernel uses as RAM"
)

// letsGo reports whether the port of a slot can release its device: a port of a socket can, a port of a switch only
// with hotplug.
func (g *Guest) letsGo(s Slot, hotplug bool) bool {
	return hotplug || slices.ContainsFunc(g.Sockets, func(x Socket) bool { return x.Name == s.Below })
}

// HotplugFor sets Hotplug of the NICs and GPUs that a change of the script removes, if they can have it: not in a guest
// without sockets, not of a gve NIC or a NIC on the root complex, and not of a GPU that is a NUMA node.
func (d *Description) HotplugFor(script []Event) {
	for i := range d.Guests {
		g := &d.Guests[i]
		if len(g.Sockets) == 0 {
			continue
		}
		removed := func(kind, name string) bool {
			return slices.ContainsFunc(script, func(e Event) bool {
				return e.Change.Kind == kind && e.Change.Of == name && e.Change.removes()
			})
		}
		for j := range g.NICs {
			n := &g.NICs[j]
			m, _ := LookupModel(n.Model)
			n.Hotplug = n.Hotplug || removed(KindNIC, n.Name) && !m.VFIOUser && g.inside(n)
		}
		for j := range g.GPUs {
			owner := g.owner(j)
			if owner < 0 {
				continue // no NIC may address the GPU: Check refuses it
			}
			m := g.ModelOf(&g.NICs[owner])
			g.GPUs[j].Hotplug = g.GPUs[j].Hotplug || removed(KindGPU, g.GPUs[j].Name) && !m.Node
		}
	}
}

// Removed reports whether the removal of the NIC from its guest has been requested, and has not failed.
func (p *Port) Removed() bool { return p.removed.Load() }

// Removed reports whether the removal of the GPU from its guest has been requested, and has not failed.
func (g *GPUMemory) Removed() bool { return g.removed.Load() }

// removeNIC removes a NIC whose driver is in this process, or asks the NIC's guest to release it. The caller holds
// changing.
func (l *Lab) removeNIC(p *Port) error {
	m := p.machine
	switch {
	case p.Removed():
		return fmt.Errorf("%s was removed before", p.Name)
	case p.Model.VFIOUser:
		return fmt.Errorf("%s: a gVNIC cannot be removed from outside, as %s: take its link down (link %s state=down), or "+
			"in the guest: echo 1 > /sys/class/net/INTERFACE/device/remove", p.Name, whyNoGVNIC, p.Name)
	case p.driver != nil:
		p.removed.Store(true)
		p.end(errRemoved)
		l.note(p.Name, hasBeenRemoved)
		return nil
	case m.faults.RemoveNIC == nil:
		return fmt.Errorf("%s cannot be removed: %w", p.Name, errNoGuest)
	case m.Bare || p.Place == "":
		return fmt.Errorf("%s cannot be removed: %w", p.Name, errNoPort)
	case !p.Hotplug:
		return fmt.Errorf("%s cannot be removed: %w", p.Name, errFixed)
	}
	done, err := m.faults.RemoveNIC(slices.Index(m.Ports, p))
	return l.removing(p.Name, &p.removed, done, err)
}

func (l *Lab) removeGPU(name string) error {
	m, i, err := l.findGPU(name)
	if err != nil {
		return err
	}
	g := m.GPUs[i]
	switch {
	case g.Removed():
		return fmt.Errorf("%s was removed before", name)
	case g.Node:
		return fmt.Errorf("%s cannot be removed: %s", name, whyNoNode)
	case slices.ContainsFunc(m.Ports, func(p *Port) bool { return p.driver != nil }):
		g.removed.Store(true)
		for _, p := range m.Ports {
			if p.driver != nil {
				p.driver.RemoveGPU(g.ID())
			}
		}
		l.note(name, hasBeenRemoved)
		return nil
	case m.faults.RemoveGPU == nil:
		return fmt.Errorf("%s cannot be removed: %w", name, errNoGuest)
	case m.Bare:
		return fmt.Errorf("%s cannot be removed: %w", name, errNoPort)
	case !g.Hotplug:
		return fmt.Errorf("%s cannot be removed: %w", name, errFixed)
	}
	done, err := m.faults.RemoveGPU(i)
	return l.removing(name, &g.removed, done, err)
}

const hasBeenRemoved = "has been removed"

var errRemoved = errors.New("removed")

// removing returns an error if err is not nil: then the removal could not be requested. Otherwise it sets removed, and
// starts a goroutine that receives the result from done and notes it; after an error from done, that clears removed. It
// notes nothing if done is closed or the lab closes first. The caller holds changing.
func (l *Lab) removing(name string, removed *atomic.Bool, done <-chan error, err error) error {
	if err != nil {
		return fmt.Errorf("%s cannot be removed: %w", name, err)
	}
	removed.Store(true)
	ended := make(chan struct{})
	l.removals = append(l.removals, ended)
	go func() {
		defer close(ended)
		select {
		case err, reported := <-done:
			switch {
			case !reported:
			case err != nil:
				removed.Store(false)
				l.note(name, "is still there: "+err.Error())
			default:
				l.note(name, hasBeenRemoved)
			}
		case <-l.closing:
		}
	}()
	return nil
}

// AwaitRemovals waits until the removals in progress at the call have ended, or ctx ends.
func (l *Lab) AwaitRemovals(ctx context.Context) {
	l.changing.Lock()
	all := slices.Clone(l.removals)
	l.changing.Unlock()
	for _, ended := range all {
		select {
		case <-ended:
		case <-ctx.Done():
		}
	}
}

func (l *Lab) note(name, text string) {
	if l.opt.Note != nil {
		l.opt.Note(name, text)
		return
	}
	l.opt.Log.Warn(text, "name", name)
}

// findGPU returns the machine of the GPU with this name (as a.gpu0), and the GPU's number in the machine.
func (l *Lab) findGPU(name string) (m *Machine, i int, err error) {
	var names []string
	for _, m := range l.machines {
		for i := range m.desc.GPUs {
			n := m.desc.GPUs[i].Name
			if n == name {
				return m, i, nil
			}
			names = append(names, n)
		}
	}
	return nil, 0, noSuch(name, "GPU", names)
}

func noSuch(name, what string, names []string) error {
	there := "there are none"
	if n := len(names); n > 0 {
		there = "there are " + strings.Join(names[:min(n, maxListed)], ", ")
	}
	return fmt.Errorf("%s is no %s of the lab: %s", name, what, there)
}

const maxListed = 8

func (l *Lab) lateTokens(p *Port, d time.Duration) error {
	late := p.machine.faults.LateTokens
	if late == nil {
		return fmt.Errorf("%s: tokens are given back by its guest's program, which is none of vnic's: vnic run has one, "+
			"once it transfers", p.Name)
	}
	return late(slices.Index(p.machine.Ports, p), min(longer(d, max(l.clock.Scale(), 1)), MaxLateTokens))
}
