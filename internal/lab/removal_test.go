package lab

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/driver"
	"vnic.dev/vnic/internal/testkit"
)

// removalLab opens a lab in which some devices can be removed and others cannot.
func removalLab(t *testing.T, note func(name, text string)) *Lab {
	l := testkit.Must(Open(removalDescription(), Options{Note: note}))(t)
	t.Cleanup(func() { testkit.OK(t, l.Close()) })
	return l
}

func removalDescription() (d Description) {
	below := func(s string) Slot { return Slot{Below: s} }
	for _, g := range []struct {
		name, model string
		sockets     []Socket
	}{{"a", Virtio, []Socket{{Name: "s0"}}}, {"b", GVE, []Socket{{Name: "s0"}}}, {"c", Virtio, nil}} {
		slot := below("s0")
		if g.sockets == nil {
			slot = Slot{}
		}
		d.Guests = append(d.Guests, Guest{Name: g.name, Sockets: g.sockets,
			NICs: []NIC{{Name: g.name + ".nic0", Model: g.model, Slot: slot},
				{Name: g.name + ".nic1", Model: g.model, Slot: slot}},
			GPUs: []GPU{{Name: g.name + ".gpu0", Memory: 2 << 20, Slot: slot},
				{Name: g.name + ".gpu1", Memory: 2 << 20, Slot: slot}}})
	}
	slot := below("sw0")
	d.Guests = append(d.Guests, Guest{Name: "d", Sockets: []Socket{{Name: "s0"}},
		Switches: []Switch{{Name: "sw0", Slot: below("s0")}},
		NICs: []NIC{{Name: "d.nic0", Model: Virtio, Slot: slot},
			{Name: "d.nic1", Model: Virtio, Slot: slot, Hotplug: true}},
		GPUs: []GPU{{Name: "d.gpu0", Memory: 2 << 20, Slot: slot},
			{Name: "d.gpu1", Memory: 2 << 20, Slot: slot, Hotplug: true}}})
	return d
}

// The lab requests a removal with the machine's GuestFaults, and calls Options.Note when the removal has ended.
func TestRemovalIsAskedOfTheGuest(t *testing.T) {
	testkit.LeavesNothing(t)
	var mu sync.Mutex
	notes := make(map[string]string)
	removals := make(chan string, 10)
	l := removalLab(t, func(name, text string) {
		mu.Lock()
		defer mu.Unlock()
		notes[name] = text
		removals <- name
	})
	apply := func(s string) error { return l.Apply(testkit.Must(ParseChange(s))(t)) }
	for what, want := range map[string]string{
		"nic a.nic0 remove": "have its QEMU do it (device_del)", "gpu a.gpu0 remove": "have its QEMU do it (device_del)",
		"nic a.nic0 tokens=5ms": "vnic run has one",
	} {
		testkit.ErrorSays(t, apply(what), want)
	}
	ends := make(map[string]chan error)
	asked := func(kind string, m int) func(int) (<-chan error, error) {
		return func(i int) (<-chan error, error) {
			name := fmt.Sprintf("%s%d.%d", kind, m, i)
			if name == "gpu0.1" {
				return nil, errors.New("no power")
			}
			ends[name] = make(chan error, 1)
			return ends[name], nil
		}
	}
	var late []string
	for i, m := range l.Machines() {
		m.SetGuest(func(f *GuestFaults) { f.RemoveNIC, f.RemoveGPU = asked("nic", i), asked("gpu", i) })
		m.SetGuest(func(f *GuestFaults) {
			f.LateTokens = func(nic int, by time.Duration) error {
				late = append(late, fmt.Sprint(i, nic, by))
				return nil
			}
		})
	}
	for what, want := range map[string]string{
		"nic b.nic0 remove": "link b.nic0 state=down", "gpu b.gpu0 remove": "NUMA node's",
		"nic c.nic0 remove": "on the root complex", "gpu c.gpu0 remove": "on the root complex",
		"gpu a.gpu9 remove": "a.gpu9 is no GPU of the lab: there are a.gpu0", "gpu a.gpu1 remove": "no power",
		"nic a.gpu0 remove": "a.gpu0 is no NIC of the lab",
		"nic d.nic0 remove": "d.nic0 cannot be removed: the port above it cannot let go of it: give it hotplug: true",
		"gpu d.gpu0 remove": "d.gpu0 cannot be removed: the port above it cannot let go of it: give it hotplug: true",
	} {
		testkit.ErrorSays(t, apply(what), want)
	}
	testkit.OK(t, errors.Join(apply("nic d.nic1 remove"), apply("gpu d.gpu1 remove")))
	testkit.OK(t, apply("nic a.nic1 remove"))
	testkit.ErrorSays(t, apply("nic a.nic1 remove"), "was removed before")
	testkit.OK(t, apply("gpu a.gpu0 remove"))
	p, g := l.Machine(0).Ports[1], l.Machine(0).GPUs[0]
	if !p.Removed() || !g.Removed() || l.Machine(0).Ports[0].Removed() || l.Machine(0).GPUs[1].Removed() {
		t.Error("others are said to be removed")
	}
	ends["nic0.1"] <- nil
	testkit.Equal(t, "note about", <-removals, "a.nic1")
	ends["gpu0.0"] <- errors.New("the guest did not release it")
	testkit.Equal(t, "note about", <-removals, "a.gpu0")
	if notes["a.nic1"] != "has been removed" || notes["a.gpu0"] != "is still there: the guest did not release it" {
		t.Errorf("%v", notes)
	}
	if !p.Removed() || g.Removed() {
		t.Errorf("removed: NIC %v, GPU %v", p.Removed(), g.Removed())
	}
	testkit.OK(t, errors.Join(apply("nic a.nic0 tokens=5ms"), l.SetScale(1000), apply("nic b.nic1 tokens=1ms"),
		apply("nic c.nic0 tokens=10s"), apply("nic a.nic0 tokens=0")))
	testkit.Equal(t, "late tokens", fmt.Sprint(late), "[0 0 5ms 1 1 1s 2 0 10s 0 0 0s]")
	testkit.OK(t, apply("gpu a.gpu0 remove")) // closing the lab does not wait for the end of this removal
}

// If the guest refuses one of a change's settings, the NIC's delay of completions stays as it was.
func TestRefusedChangeLeavesTheOthers(t *testing.T) {
	l := removalLab(t, nil)
	const change = "nic a.nic0 completions=5ms tokens=5ms tokens=6ms exhaust=0"
	p := l.Machine(0).Ports[0]
	refused := func(why string) {
		t.Helper()
		testkit.ErrorSays(t, l.Apply(testkit.Must(ParseChange(change))(t)), why)
		testkit.Equal(t, "delay of completions", p.completions, 0)
	}
	refused("vnic run has one")
	var asked []time.Duration
	err := errors.New("the guest is busy")
	l.Machine(0).SetGuest(func(f *GuestFaults) {
		f.LateTokens = func(_ int, by time.Duration) error {
			asked = append(asked, by)
			return err
		}
	})
	refused("the guest is busy")
	err = nil
	testkit.OK(t, l.Apply(testkit.Must(ParseChange(change))(t)))
	testkit.Equal(t, "delay of completions", p.completions, 5*time.Millisecond)
	testkit.Equal(t, "delays of tokens", fmt.Sprint(asked), "[6ms 6ms]")
}

// A device that a script removes gets Hotplug if it can be removed; Check refuses Hotplug of one that cannot.
func TestWhatAScriptRemovesIsHotplug(t *testing.T) {
	d := removalDescription()
	var script []Event
	for _, s := range []string{"nic a.nic0 remove", "gpu a.gpu1 remove", "nic a.nic1 p2p=off", "nic b.nic0 remove",
		"gpu b.gpu0 remove", "nic c.nic0 remove", "gpu c.gpu0 remove", "link d.nic0 state=down"} {
		script = append(script, Event{Change: testkit.Must(ParseChange(s))(t)})
	}
	d.HotplugFor(script)
	testkit.OK(t, d.Check())
	var got []string
	for _, g := range d.Guests {
		for _, n := range g.NICs {
			if n.Hotplug {
				got = append(got, n.Name)
			}
		}
		for _, m := range g.GPUs {
			if m.Hotplug {
				got = append(got, m.Name)
			}
		}
	}
	testkit.Equal(t, "hotplug", fmt.Sprint(got), "[a.nic0 a.gpu1 d.nic1 d.gpu1]")
	for want, change := range map[string]func(d *Description){
		"NIC b.nic1: hotplug: not with model gve": func(d *Description) { d.Guests[1].NICs[1].Hotplug = true },
		"a NUMA node's": func(d *Description) { d.Guests[1].GPUs[1].Hotplug = true },
		"NIC c.nic1: hotplug: it is on the root complex": func(d *Description) { d.Guests[2].NICs[1].Hotplug = true },
		"GPU c.gpu1: hotplug: it is on the root complex": func(d *Description) { d.Guests[2].GPUs[1].Hotplug = true },
	} {
		d := removalDescription()
		change(&d)
		testkit.ErrorSays(t, d.Check(), want)
	}
}

// After a removal, a driver in this process returns ENODEV: for its NIC, or for a frame with memory of the GPU.
func TestRemovalFromAProcess(t *testing.T) {
	testkit.LeavesNothing(t)
	l := removalLab(t, func(string, string) {})
	m := l.Machine(2)
	var nics []*driver.NIC
	r := receivesNothing{woken: make(chan struct{}, 1)}
	for _, p := range m.Ports {
		n := testkit.Must(p.InProcess(driver.Options{QueuePairs: 2, HostQueues: 1}))(t)
		defer func() { _ = n.Close() }()
		testkit.OK(t, n.Start(r))
		nics = append(nics, n)
	}
	apply := func(s string) error { return l.Apply(testkit.Must(ParseChange(s))(t)) }
	testkit.OK(t, apply("nic c.nic0 remove"))
	for nics[0].Err() == nil {
		<-r.woken
	}
	testkit.ErrorIs(t, nics[0].Err(), unix.ENODEV)
	testkit.OK(t, nics[1].Err())
	testkit.OK(t, apply("gpu c.gpu1 remove"))
	testkit.OK(t, nics[1].Err())
	id := m.GPUs[1].ID()
	_, err := nics[1].Transmit(0, []driver.TxFrame{{Header: make([]byte, 60), Device: []driver.Range{{GPU: id, Len: 8}}}})
	testkit.ErrorIs(t, err, unix.ENODEV)
	id = m.GPUs[0].ID()
	_, err = nics[1].Transmit(0, []driver.TxFrame{{Header: make([]byte, 60), Device: []driver.Range{{GPU: id, Len: 8}}}})
	testkit.OK(t, err)
}

type receivesNothing struct{ woken chan struct{} }

func (receivesNothing) Receive([]driver.RxFrame) {}
func (receivesNothing) Completed(int, []uint64)  {}
func (r receivesNothing) Wake() {
	select {
	case r.woken <- struct{}{}:
	default:
	}
}
