package lab_test

import (
	"testing"

	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/lab/pcie"
	"vnic.dev/vnic/internal/testkit"
)

// twoSockets returns a guest that has a switch with a NIC and a GPU below each of two sockets.
func twoSockets(r pcie.Routing) lab.Guest {
	slot := func(below string) lab.Slot { return lab.Slot{Below: below, Link: pcie.Link{Gen: 4, Width: 16}} }
	return lab.Guest{Name: "a",
		Sockets:  []lab.Socket{{Name: "s0", Routing: r}, {Name: "s1", Routing: r}},
		Switches: []lab.Switch{{Name: "sw0", Slot: slot("s0")}, {Name: "sw1", Slot: slot("s1")}},
		NICs: []lab.NIC{{Name: "a.nic0", Model: lab.Virtio, Slot: slot("sw0")},
			{Name: "a.nic1", Model: lab.Virtio, Slot: slot("sw1")}},
		GPUs: []lab.GPU{{Name: "a.gpu0", Memory: 4096, Slot: slot("sw0")}, {Name: "a.gpu1", Memory: 4096, Slot: slot("sw1")}}}
}

// Each NIC reports its path to each GPU, the nearest GPU first.
func TestEachNICHasAPathToEachGPU(t *testing.T) {
	testkit.LeavesNothing(t)
	for _, c := range []struct {
		routing pcie.Routing
		off     bool
		kind    pcie.PathKind
		other   pcie.PathKind
	}{
		{pcie.NoRouting, false, pcie.Bus, pcie.NoPath},
		{pcie.AnyBridge, false, pcie.Bus, pcie.HostBridge},
		{pcie.AnyBridge, true, pcie.NoPath, pcie.NoPath},
	} {
		d := lab.Description{Guests: []lab.Guest{twoSockets(c.routing)}, NoP2P: c.off}
		l := testkit.Must(lab.Open(d, lab.Options{}))(t)
		for i, p := range l.Ports() {
			gpus := testkit.Must(p.NIC().GPUs())(t)
			testkit.Equal(t, "GPUs", len(gpus), 2)
			for j, g := range gpus {
				want, pos := c.kind, i
				if j > 0 {
					want, pos = c.other, 1-i
				}
				if pcie.PathKind(g.P2P) != want || g.ID != uint16(pos) ||
					g.Place != []string{"s0/sw0/gpu0", "s1/sw1/gpu1"}[pos] {
					t.Errorf("%v: %s to GPU %d: %+v", c, p.Name, j, g)
				}
			}
		}
		testkit.Equal(t, "socket", l.Machine(0).Tree.SocketOf("nic1"), "s1")
		testkit.OK(t, l.Close())
	}
}

func TestGuestWithoutSocketsHasASwitchForEachNIC(t *testing.T) {
	d := lab.Description{Guests: []lab.Guest{{NICs: []lab.NIC{{Model: lab.Virtio, GPUs: []int{0}},
		{Model: lab.Virtio, GPUs: []int{1}}}, GPUs: []lab.GPU{{Memory: 4096}, {Memory: 4096}}}}}
	tree, nics, gpus := d.Tree(0)
	testkit.Equal(t, "own", tree.Path(nics[1], gpus[1]).Kind, pcie.Bus)
	testkit.Equal(t, "other", tree.Path(nics[0], gpus[1]).Kind, pcie.NoPath)
	testkit.Equal(t, "place", tree.Place(gpus[1]), "rc0/swport1/gpuport1")
}

func TestBadTreesAreRefused(t *testing.T) {
	for want, change := range map[string]func(g *lab.Guest){
		"guest a: nic0 is below sw9, which is neither": func(g *lab.Guest) { g.NICs[0].Slot.Below = "sw9" },
		"guest a: there are two sw0":                   func(g *lab.Guest) { g.Switches[1].Name = "sw0" },
		"guest a: sw0 is below itself":                 func(g *lab.Guest) { g.Switches[0].Below = "sw0" },
		"guest a: gpu0: a socket is below nothing":     func(g *lab.Guest) { g.GPUs[0].Slot.Below = "" },
		"NIC a.nic0: gpus: it may address 17: 16 at most": func(g *lab.Guest) {
			for range 15 {
				g.GPUs = append(g.GPUs, g.GPUs[0])
			}
		},
	} {
		g := twoSockets(pcie.NoRouting)
		change(&g)
		_, err := lab.Open(lab.Description{Guests: []lab.Guest{g}}, lab.Options{})
		testkit.ErrorSays(t, err, want)
	}
}
