package boot

import (
	"context"
	"fmt"
	"slices"

	"vnic.dev/vnic/internal/guesttree"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/lab/pcie"
)

// compareTrees notes pairs of NIC and GPU whose peer-to-peer path the guest's kernel judges otherwise than the lab. It
// does nothing without a lab file, without GPUs, or if the guest's tree is a default one (lab.Machine.Bare).
func (g *guest) compareTrees(ctx context.Context) error {
	o := g.runner.opt
	if o.Lab == nil || g.hw.Bare || len(g.hw.GPUs) == 0 {
		return nil
	}
	seen, err := guesttree.Read(ctx, g.QEMU.Agent())
	if err != nil {
		return err
	}
	differ, err := g.differences(seen)
	if err != nil {
		o.Note("%s: what its kernel makes of peer to peer is not known: %v", g.name, err)
		return nil
	}
	for _, d := range differ {
		o.Note("%s: %s: %s", g.name, d.Some(), d.Text)
	}
	return nil
}

func (g *guest) differences(seen *guesttree.Tree) ([]lab.Pairs, error) {
	places, err := g.endpoints(seen)
	if err != nil {
		return nil, err
	}
	linux := func(nic, gpu string) pcie.Path { return seen.Path(places[nic], places[gpu]) }
	return g.runner.opt.Lab.Differences(g.index, linux), nil
}

// endpoints maps the names of endpoints below the lab's sockets to PCI addresses in the guest: both trees number buses
// depth first, and each such endpoint has a bus of its own.
func (g *guest) endpoints(seen *guesttree.Tree) (map[string]string, error) {
	var ours []string
	var down func(above string)
	down = func(above string) {
		for _, n := range g.hw.Tree.Children(above) {
			if n.Kind == pcie.Endpoint {
				ours = append(ours, n.Name)
			}
			down(n.Name)
		}
	}
	down("")
	theirs := slices.DeleteFunc(slices.Clone(seen.Ends), func(name string) bool {
		return guesttree.Bus(name) < pcie.OwnBuses // on the root complex
	})
	if len(ours) != len(theirs) {
		return nil, fmt.Errorf("it has %d NICs and GPUs of %d", len(theirs), len(ours))
	}
	places := make(map[string]string)
	for i, name := range ours {
		places[name] = theirs[i]
	}
	for _, p := range g.devmem {
		if found := g.found(p).PCI; p.Place != "" && places[p.Place] != found {
			return nil, fmt.Errorf("%s is at %s, and not at %s", p.Place, found, places[p.Place])
		}
	}
	return places, nil
}
