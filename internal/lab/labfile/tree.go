package labfile

import (
	"errors"
	"maps"
	"slices"
	"strings"

	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/lab/pcie"
)

// reaches checks a guest (lab.Description.Check), and, if it has sockets, that QEMU has room for its tree.
func (b *builder) reaches(where path, g *lab.Guest) error {
	one := lab.Description{Guests: []lab.Guest{*g}}
	err := one.Check()
	if err == nil && len(g.Sockets) > 0 {
		tree, _, _ := one.Tree(0)
		err = tree.Fits()
	}
	if bad := (*pcie.NodeError)(nil); errors.As(err, &bad) {
		i := bad.Index
		for _, part := range []struct {
			name string
			n    int
		}{{"sockets", len(g.Sockets)}, {"switches", len(g.Switches)}, {"nics", len(g.NICs)}, {"gpus", len(g.GPUs)}} {
			if i < part.n {
				return b.wrong(where.to(part.name, i), "%s", bad.Text)
			}
			i -= part.n
		}
	}
	return b.field(where, err)
}

// field converts an error about a guest to one at its place in the file; nil stays nil.
func (b *builder) field(where path, err error) error {
	bad := (*lab.FieldError)(nil)
	switch {
	case err == nil:
		return nil
	case !errors.As(err, &bad):
		return b.wrong(where, "%v", err)
	case bad.Part != "":
		where = where.to(bad.Part, bad.Index)
	}
	if bad.Key != "" {
		where = where.to(bad.Key)
	}
	return b.wrong(where, "%s", bad.InFile())
}

// tree copies a guest's sockets, interconnects and switches from f to g, and checks their names and the names of its
// NICs and GPUs.
func (b *builder) tree(where path, f *Guest, g *lab.Guest) error {
	seen := make(map[string]bool)
	name := func(where path, s string) error {
		err := lab.CheckName(s)
		switch {
		case err != nil:
			return b.wrong(where.to("name"), "%q is no name: %v", s, err)
		case s == "rc0":
			return b.wrong(where.to("name"), "rc0 is the root complex of a guest without sockets: take another name")
		case seen[s]:
			return b.wrong(where.to("name"), "there are two %s", s)
		}
		seen[s] = true
		return nil
	}
	for i, s := range f.Sockets {
		if err := name(where.to("sockets", i), s.Name); err != nil {
			return err
		}
		out := lab.Socket{Name: s.Name}
		if s.P2P != "" {
			if err := out.Routing.UnmarshalText([]byte(s.P2P)); err != nil {
				return b.wrong(where.to("sockets", i, "p2p"), "p2p is %v", err)
			}
		}
		if err := b.rate(where.to("sockets", i, "dram"), s.DRAM, &out.DRAM); err != nil {
			return err
		}
		g.Sockets = append(g.Sockets, out)
	}
	if err := b.interconnects(where.to("interconnect"), f, g); err != nil {
		return err
	}
	for i, s := range f.Switches {
		if err := name(where.to("switches", i), s.Name); err != nil {
			return err
		}
		slot, err := b.slot(where.to("switches", i), f, s.Slot)
		if err != nil {
			return err
		}
		g.Switches = append(g.Switches, lab.Switch{Name: s.Name, Slot: slot})
	}
	for i, n := range f.NICs {
		if err := name(where.to("nics", i), n.Name); err != nil {
			return err
		}
	}
	for i, p := range f.GPUs {
		if err := name(where.to("gpus", i), p.Name); err != nil {
			return err
		}
	}
	return nil
}

// slot parses the place of a device in the tree; in a guest without sockets, a device must not have one.
func (b *builder) slot(where path, f *Guest, s Slot) (out lab.Slot, err error) {
	if len(f.Sockets) == 0 {
		if s != (Slot{}) {
			return out, b.wrong(where,
				"below, link and acs-redirect are of a guest with sockets: name them, as sockets: [{name: s0}]")
		}
		return out, nil
	}
	var places []string
	for _, x := range f.Sockets {
		places = append(places, x.Name)
	}
	for _, x := range f.Switches {
		places = append(places, x.Name)
	}
	switch {
	case s.Below == "":
		return out, b.wrong(where, "it does not say what it is below: one of %s", strings.Join(places, ", "))
	case !slices.Contains(places, s.Below):
		return out, b.wrong(where.to("below"), "below %s: no socket or switch of the guest, which has %s", s.Below,
			strings.Join(places, ", "))
	}
	out = lab.Slot{Below: s.Below, Redirect: s.ACSRedirect}
	if err = out.Link.UnmarshalText([]byte(s.Link)); err != nil {
		return out, b.wrong(where.to("link"), "%v", err)
	}
	return out, nil
}

func (b *builder) interconnects(where path, f *Guest, g *lab.Guest) error {
	for _, key := range slices.Sorted(maps.Keys(f.Interconnect)) {
		var from, to string
		exists := func(name string) bool {
			return slices.ContainsFunc(g.Sockets, func(s lab.Socket) bool { return s.Name == name })
		}
		for i := range len(key) { // names may have dashes
			if key[i] == '-' && exists(key[:i]) && exists(key[i+1:]) {
				from, to = key[:i], key[i+1:]
			}
		}
		same := func(x lab.Interconnect) bool { return x.From == to && x.To == from || x.From == from && x.To == to }
		switch {
		case !exists(from) || !exists(to) || from == to:
			return b.wrong(where.to(key), "%s is not between two sockets of the guest, as s0-s1 is", key)
		case slices.ContainsFunc(g.Interconnects, same):
			return b.wrong(where.to(key), "the link between %s and %s is there twice", from, to)
		}
		x := lab.Interconnect{From: from, To: to}
		if err := b.rate(where.to(key), f.Interconnect[key], &x.Rate); err != nil {
			return err
		}
		g.Interconnects = append(g.Interconnects, x)
	}
	return nil
}
