package guests

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	guestimages "vnic.dev/vnic/guest-images"
	"vnic.dev/vnic/internal/agent"
	"vnic.dev/vnic/internal/driver"
	"vnic.dev/vnic/internal/guestnet"
	"vnic.dev/vnic/internal/guestnvme"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/machine"
	"vnic.dev/vnic/internal/machine/machinetest"
	"vnic.dev/vnic/internal/machine/qemu"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/stack"
)

// life is how long a guest of a lab may live.
const life = 8 * time.Minute

// step is how long a subtest that run starts may take.
const step = 2 * time.Minute

// guestLab is two guests, and a third one in this process.
type guestLab struct {
	lab   *lab.Lab
	ports [5]*lab.Port // indexed by gvePort to virtioPort

	gve    *machine.Guest // its kernel has two gVNICs and a GPU, our driver a virtio NIC and another GPU
	virtio *machine.Guest // its kernel has a virtio NIC
	nic    *driver.NIC    // of the guest in this process
	peer   *stack.Stack   // stack on nic

	disks map[string]*os.File // by serial number
	dead  error               // why a guest has ended; nil: lives has seen no end
}

const (
	gvePort    = iota // eth0 of the gve guest
	gveSecond         // eth1 of that guest, for the peer of the conformance suite
	oursPort          // the virtio NIC of the gve guest, whose kernel has no driver for it
	peerPort          // of the guest in this process
	virtioPort        // eth0 of the virtio guest
)

const (
	gveGuest = iota
	peerGuest
	virtioGuest
)

// One GPU is a NUMA node (of 64 MiB the kernel sometimes left too little), the other a BAR.
const nodeSize, barSize = 128 << 20, 64 << 20

func newLab(t *testing.T) *guestLab {
	t.Helper()
	begin := time.Now()
	nvme := slices.Concat(guestnvme.TargetModules, guestnvme.InitiatorModules)
	gveModules := slices.Concat(machine.SoftwareFor(lab.GVE).Modules, machine.SoftwareFor(lab.Virtio).Modules, nvme)
	virtioModules := append(slices.Clone(nvme), machine.SoftwareFor(lab.Virtio).Driver)
	im := machinetest.Images(t, []string{lab.GVE, lab.Virtio}, guestimages.Options{
		Applets: []string{"devmem"},
		Modules: unique(slices.Concat(gveModules, virtioModules)),
		Files: map[string]string{
			"bin/devmem-clients":     machinetest.Program(t, "vnic.dev/vnic/internal/clienttest/devmem-clients"),
			"bin/devmem-conformance": machinetest.Program(t, "vnic.dev/vnic/internal/kerneltest/devmem-conformance"),
		}})
	w := &guestLab{lab: machinetest.Lab(t, lab.Description{Guests: []lab.Guest{
		gveGuest: {Name: "gve", NICs: []lab.NIC{{Model: lab.GVE, GPUs: []int{0}}, {Model: lab.GVE, GPUs: []int{0}},
			{Model: lab.Virtio, GPUs: []int{1}}}, GPUs: []lab.GPU{{Memory: nodeSize}, {Memory: barSize}}},
		peerGuest:   {Name: "peer", NICs: []lab.NIC{{Model: lab.Virtio, QueuePairs: 2}}, GPUs: []lab.GPU{{Memory: 16 << 20}}},
		virtioGuest: {Name: "virtio", NICs: []lab.NIC{{Model: lab.Virtio}}},
	}}, nil)}
	for i := range w.ports {
		w.ports[i] = w.lab.Port(i)
	}
	w.newDisks(t)
	w.startPeer(t)
	booting := time.Now()
	guests := machinetest.BootAll(t, im,
		machinetest.Guest{Machine: w.lab.Machine(gveGuest), Config: machine.Config{
			Config: qemu.Config{Name: "gve", RAMSize: 512 << 20, Accel: qemu.AccelTCG, TimeLimit: life,
				Disks: w.disksOf(gveGuest)},
			Agent: agent.Config{Hostname: "gve", Modules: unique(gveModules)}}},
		machinetest.Guest{Machine: w.lab.Machine(virtioGuest), Config: machine.Config{
			Config: qemu.Config{Name: "virtio", RAMSize: 256 << 20, Accel: qemu.AccelTCG, TimeLimit: life,
				Disks: w.disksOf(virtioGuest)},
			Agent: agent.Config{Hostname: "virtio", Modules: virtioModules}}})
	w.gve, w.virtio = guests[0], guests[1]
	for i, g := range map[int]*machine.Guest{gvePort: w.gve, virtioPort: w.virtio} {
		p := w.ports[i]
		r, err := guestnet.Apply(t.Context(), g.Agent(), guestnet.Config{Interfaces: []guestnet.Interface{{
			MAC: net.HardwareAddr(p.MAC[:]).String(), MTU: p.MTU, Addrs: []netip.Prefix{p.Addr4, p.Addr6}}}})
		if err != nil || r.NotReady != "" {
			t.Fatal(g.Name(), r.NotReady, err)
		}
	}
	t.Logf("prepared in %v, booted in %v", booting.Sub(begin), time.Since(booting))
	return w
}

func unique(list []string) []string {
	slices.Sort(list)
	return slices.Compact(list)
}

func (w *guestLab) startPeer(t *testing.T) {
	t.Helper()
	p := w.ports[peerPort]
	w.nic = testkit.Must(p.InProcess(driver.Options{QueuePairs: 2, HostQueues: 1}))(t)
	// An emulated guest may answer late.
	s, err := stack.New(w.nic, w.nic.Control(), stack.Options{Addresses: []netip.Prefix{p.Addr4, p.Addr6}, MTU: p.MTU,
		MinRTO: 3 * time.Second})
	if err != nil {
		t.Fatal(errors.Join(err, w.nic.Close()))
	}
	w.peer = s
	t.Cleanup(func() { testkit.OK(t, s.Close()) })
}

func (w *guestLab) addrPort(i int, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(w.ports[i].Addr4.Addr(), port)
}

// run runs f as a subtest, which fails at once if a guest has ended.
func (w *guestLab) run(t *testing.T, name string, f func(ctx context.Context, t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		w.lives(t)
		begin := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), step)
		defer func() {
			cancel()
			if t.Failed() {
				w.lives(t)
			}
			t.Logf("%v", time.Since(begin))
		}()
		f(ctx, t)
	})
}

// lives fails a test if a guest has ended.
func (w *guestLab) lives(t *testing.T) {
	t.Helper()
	for _, g := range []*machine.Guest{w.gve, w.virtio} {
		if w.dead == nil {
			w.dead = g.Gone("in the middle of the tests")
		}
	}
	if w.dead != nil {
		t.Fatalf("a guest has ended: %v", w.dead)
	}
}

func call(ctx context.Context, t *testing.T, g *machine.Guest, args ...string) agent.ExecResult {
	t.Helper()
	r := testkit.Must(agent.Run.Call(ctx, g.Agent(), agent.Exec{Args: args}))(t)
	if r.Status != 0 {
		t.Fatalf("guest %s: %q: status %d: %s%s", g.Name(), args, r.Status, agent.Plain(r.Stdout), agent.Plain(r.Stderr))
	}
	return r
}
