package labtree

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	guestimages "vnic.dev/vnic/guest-images"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/lab/labfile"
	"vnic.dev/vnic/internal/lab/pcie"
	"vnic.dev/vnic/internal/machine"
	"vnic.dev/vnic/internal/machine/machinetest"
	"vnic.dev/vnic/internal/machine/qemu"
	"vnic.dev/vnic/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// A guest's kernel finds the PCIe tree that the lab describes: the first guest of the lab file a3-high, with one
// slow link and, with virtio, hot-plug slots.
func TestKernelFindsTheTree(t *testing.T) {
	for _, model := range []string{lab.Virtio, lab.GVE} {
		t.Run(model, func(t *testing.T) {
			im := machinetest.Images(t, []string{model}, guestimages.Options{
				Program: machinetest.Program(t, "vnic.dev/vnic/test/internal/labtree/guest"),
				Modules: []string{machine.SoftwareFor(model).Driver}})
			d := testkit.Must(labfile.Load("a3-high", nil))(t)
			d.Guests = d.Guests[:1]
			for i := range d.Guests[0].NICs {
				d.Guests[0].NICs[i].Model, d.Guests[0].NICs[i].QueuePairs = model, 1
			}
			slow := &d.Guests[0].NICs[3].Slot.Link // unlike the others' links and the default
			*slow = testkit.Must(pcie.ParseLink("gen2x4"))(t)
			if model == lab.Virtio { // although the file gives these slots faster links
				d.Guests[0].NICs[2].Hotplug, d.Guests[0].GPUs[1].Hotplug = true, true
			}
			l := machinetest.Lab(t, d.Description, nil)
			hw := l.Machine(0)
			for i, g := range hw.GPUs {
				b := testkit.Must(unix.Mmap(int(g.File.Fd()), 0, int(g.Size()), unix.PROT_WRITE, unix.MAP_SHARED))(t)
				for off := 0; off < len(b); off += PageSize {
					binary.LittleEndian.PutUint64(b[off:], uint64(i+1))
				}
				testkit.OK(t, unix.Munmap(b))
			}
			g := machinetest.Boot(t, im, hw, machine.Config{Config: qemu.Config{RAMSize: 384 << 20, CPUs: 2}})
			var s Seen
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			testkit.OK(t, g.Agent().Call(ctx, "seen", nil, &s))
			compare(t, hw, &s)
			testkit.OK(t, g.PowerOff(t.Context()))
		})
	}
}

func compare(t *testing.T, hw *lab.Machine, s *Seen) {
	t.Helper()
	seen, err := pcie.New(s.Nodes)
	testkit.OK(t, err)
	nodes := make(map[string]pcie.Node)
	for _, n := range s.Nodes {
		nodes[n.Name] = n
	}
	described := make(map[string]pcie.Node)
	for _, n := range hw.Tree.Nodes() {
		described[n.Name] = n
	}
	want := len(hw.Tree.Children(""))
	for _, g := range hw.GPUs {
		if g.Node {
			want++
		}
	}
	testkit.Equal(t, "NUMA nodes", len(s.NUMA), want)
	testkit.Equal(t, "NICs", len(s.NICs), len(hw.Ports))
	testkit.Equal(t, "GPUs", len(s.GPUs), len(hw.GPUs))
	for _, p := range hw.Ports {
		nic := s.NICs[net.HardwareAddr(p.MAC[:]).String()]
		if nic == "" {
			t.Fatalf("no NIC with the MAC of %s: %v", p.Name, s.NICs)
		}
		numa := described[hw.Tree.SocketOf(p.Place)].NUMA
		testkit.Equal(t, p.Name+": NUMA node", nodes[seen.SocketOf(nic)].NUMA, numa)
		testkit.Equal(t, p.Name+": port", s.Ports[nic],
			shown(described[p.Place].Link, p.Hotplug, p.Model.Name == lab.Virtio))
		if p.Model.Name == lab.GVE {
			testkit.Equal(t, p.Name+": link", nodes[nic].Link, described[p.Place].Link)
			testkit.Equal(t, p.Name+": switch's link", nodes[nodes[nic].Below].Link, described[described[p.Place].Below].Link)
		}
		for i, g := range hw.GPUs {
			gpu := s.GPUs[uint64(i+1)]
			if gpu == "" {
				t.Fatalf("GPU %d is not there: %v", i, s.GPUs)
			}
			path, found := hw.Tree.Path(p.Place, g.Place), seen.Path(nic, gpu)
			if path.Distance != found.Distance {
				t.Errorf("%s to %s: %+v, found to be %+v", p.Name, g.Place, path, found)
			}
			if found.P2P() != (path.Kind == pcie.Bus) { // Linux does not know that this CPU's host bridges forward
				t.Errorf("%s to %s: %+v, the guest's kernel says %+v", p.Name, g.Place, path, found)
			}
		}
	}
	for i, g := range hw.GPUs {
		testkit.Equal(t, g.Name+": port", s.Ports[s.GPUs[uint64(i+1)]], shown(described[g.Place].Link, g.Hotplug, false))
	}
	if t.Failed() {
		var b strings.Builder
		for _, n := range s.Nodes {
			b.WriteString(seen.Place(n.Name) + " " + n.Link.String() + "\n")
		}
		t.Log(b.String())
	}
}

// shown returns what sysfs must show for a port with this link. The current link is the slowest possible above
// one of QEMU's PCI Express devices (express), and at a hot-plug port, whose maximum is unknown.
func shown(l pcie.Link, hotplug, express bool) Port {
	text := fmt.Sprintf("%.1f GT/s PCIe x%d", l.Transfers(), l.Width)
	p := Port{Current: text, Max: text}
	if hotplug {
		p.Max = "Unknown x0"
	}
	if hotplug || express {
		p.Current = "2.5 GT/s PCIe x1"
	}
	return p
}
