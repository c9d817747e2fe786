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

// GuestFaults does what changes want of a machine's guest, and not of its NICs. Its functions are called one at a
// time, and do not wait for the guest to do what it is asked. What is nil cannot be done.
type GuestFaults struct {
	// RemoveNIC has the guest lose NIC i of Machine.Ports, RemoveGPU GPU i of Machine.GPUs. Without an error the
	// channel tells how that ended: nil when it is gone; or it is closed, as the guest ends before.
	RemoveNIC, RemoveGPU func(i int) (<-chan error, error)
	// LateTokens has receivers at NIC i of Machine.Ports give tokens back so much later; 0: at once.
	LateTokens func(i int, late time.Duration) error
}

// MaxLateTokens is how late tokens may be given back.
const MaxLateTokens = 10 * time.Second

// SetGuest says what can be done to the machine's guest, from now on. What is nil stays as it was.
func (m *Machine) SetGuest(f GuestFaults) {
	m.lab.changing.Lock()
	defer m.lab.changing.Unlock()
	if f.RemoveNIC != nil {
		m.faults.RemoveNIC = f.RemoveNIC
	}
	if f.RemoveGPU != nil {
		m.faults.RemoveGPU = f.RemoveGPU
	}
	if f.LateTokens != nil {
		m.faults.LateTokens = f.LateTokens
	}
}

// Why something cannot be removed.
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

// letsGo reports whether the port of a slot lets go of its device while the guest runs: root ports do, and a switch's
// ports if the description says hotplug.
func (g *Guest) letsGo(s Slot, hotplug bool) bool {
	return hotplug || slices.ContainsFunc(g.Sockets, func(x Socket) bool { return x.Name == s.Below })
}

// HotplugFor sets Hotplug of all NICs and GPUs that a script removes. It leaves out the ones that
// cannot be removed: the script's change fails then.
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
				continue // which Check refuses
			}
			m := g.ModelOf(&g.NICs[owner])
			g.GPUs[j].Hotplug = g.GPUs[j].Hotplug || removed(KindGPU, g.GPUs[j].Name) && !m.Node
		}
	}
}

// Removed reports whether the NIC was taken away from its guest, or is about to be.
func (p *Port) Removed() bool { return p.removed.Load() }

// Removed reports whether the GPU was taken away from its guest, or is about to be.
func (g *GPUMemory) Removed() bool { return g.removed.Load() }

// removeNIC takes a NIC from its guest. changing is held.
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
		p.end(errRemoved) // its driver sees the connection end
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

// removeGPU takes the GPU of that name from its guest. changing is held.
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

// errRemoved ends what is served of a NIC that was removed.
var errRemoved = errors.New("removed")

// removing waits for the end of a removal that was asked for, and notes it. changing is held.
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

// AwaitRemovals waits until all that was to be removed is, or is not to be, or until ctx ends.
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

// note tells a user what became of something.
func (l *Lab) note(name, text string) {
	if l.opt.Note != nil {
		l.opt.Note(name, text)
		return
	}
	l.opt.Log.Warn(text, "name", name)
}

// findGPU finds a GPU by the name that the lab file has, as a.gpu0.
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

// noSuch says that a name is none of these.
func noSuch(name, what string, names []string) error {
	there := "there are none"
	if n := len(names); n > 0 {
		there = "there are " + strings.Join(names[:min(n, maxListed)], ", ")
	}
	return fmt.Errorf("%s is no %s of the lab: %s", name, what, there)
}

const maxListed = 8

// lateTokens has receivers at a port's NIC give tokens back later. changing is held.
func (l *Lab) lateTokens(p *Port, d time.Duration) error {
	late := p.machine.faults.LateTokens
	if late == nil {
		return fmt.Errorf("%s: tokens are given back by its guest's program, which is none of vnic's: vnic run has one, "+
			"once it transfers", p.Name)
	}
	return late(slices.Index(p.machine.Ports, p), min(longer(d, max(l.clock.Scale(), 1)), MaxLateTokens))
}
