package labfile

import (
	"cmp"
	"fmt"
	"math"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/wire"
)

// Lab is a lab file's content.
type Lab struct {
	lab.Description
	Machines []Machine // of the guests, in the order of Description.Guests
	Uplinks  []Uplinked
	Seed     *uint64 // nil: the file gives none
	Script   []lab.Event
	Gateway  string // lab.GatewayNAT, GatewayIsolated or GatewayOff; "": not given
	Accel    string // auto, kvm or tcg; "": not given
}

// Machine is the RAM and CPUs of a guest.
type Machine struct {
	RAM  uint64 // bytes
	CPUs int
}

// Memory returns the size of all GPUs in bytes, plus the guests' RAM if ram is set.
func (l *Lab) Memory(ram bool) (sum uint64) {
	add := func(n uint64) { sum += min(n, math.MaxUint64-sum) }
	for i, g := range l.Guests {
		if ram {
			add(l.Machines[i].RAM)
		}
		for _, m := range g.GPUs {
			add(m.Memory)
		}
	}
	return sum
}

func (l *Lab) gpus() (n int) {
	for _, g := range l.Guests {
		n += len(g.GPUs)
	}
	return n
}

// Lossy reports whether a link may lose, hold back, duplicate or corrupt segments from the start
// (wire.Impairment.Lossy), before Script changes anything.
func (l *Lab) Lossy() bool {
	for n := range l.AllNICs() {
		if n.Link.Up.Lossy() {
			return true
		}
	}
	return false
}

// MayLose reports whether a link is lossy, or the lab has a script; false for a nil Lab.
func (l *Lab) MayLose() bool { return l != nil && (l.Lossy() || len(l.Script) > 0) }

// Defaults and bounds.
const (
	defaultRAM = 512 << 20
	maxMemory  = 1 << 42 // of a GPU, in bytes
	defaultGPU = 64 << 20
	maxNICs    = 64 // of a guest
	maxBare    = 24 // NICs and GPUs of a guest without sockets, together
)

// builder makes a Lab from a file.
type builder struct {
	*document
	file  *File
	out   *Lab
	port  int
	given map[string]bool // MAC and IP addresses of the NICs so far
}

func (b *builder) build() error {
	if err := b.plain(); err != nil {
		return err
	}
	names := b.keys(b.node("guests"))
	if len(b.file.Guests) == 0 {
		return b.wrong([]any{"guests"}, "no guests: at least one, as `vnic lab show pair` prints")
	}
	b.out.NoP2P, b.out.Accel, b.out.Gateway = b.file.P2P == "off", b.file.Accel, b.file.Gateway
	for _, x := range []struct{ key, value, first, last string }{
		{"p2p", b.file.P2P, "on", "off"}, {"accel", b.file.Accel, "auto, kvm", "tcg"},
		{"gateway", b.file.Gateway, "nat, isolated", "off"},
	} {
		words := append(strings.Split(x.first, ", "), x.last, "")
		if !slices.Contains(words, x.value) {
			return b.wrong([]any{x.key}, "%s is %q: %s or %s", x.key, x.value, x.first, x.last)
		}
	}
	if b.file.Scale != "" {
		var err error
		if b.out.Scale, err = lab.ParseScale(string(b.file.Scale)); err != nil {
			return b.wrong([]any{"scale"}, "scale is %s: %v", b.file.Scale, err)
		}
	}
	for i, name := range names {
		if slices.Contains(names[:i], name) {
			continue // the name is there again, as from a merged mapping (<<); b.file has one guest for it
		}
		if err := b.guest(name); err != nil {
			return err
		}
	}
	for _, part := range []func() error{b.links, b.script, b.uplinks} {
		if err := part(); err != nil {
			return err
		}
	}
	if gpus := b.out.gpus(); gpus > lab.MaxGPUs {
		return b.wrong([]any{"guests"}, "%d GPUs: a lab has %d at most", gpus, lab.MaxGPUs)
	}
	if err := b.out.Check(); err != nil {
		return b.wrong([]any{"guests"}, "%v", err)
	}
	return nil
}

func (b *builder) guest(name string) error {
	f := b.file.Guests[name]
	where := path{"guests", name}
	if err := lab.CheckName(name); err != nil {
		return b.wrong(where, "%q is no name of a guest: %v", name, err)
	}
	if b.out.Gateway != lab.GatewayOff && lab.HasName(name) {
		return b.wrong(where, "a guest cannot be called %s beside a gateway: give it another name, or write gateway: off",
			name)
	}
	m := Machine{RAM: defaultRAM, CPUs: cmp.Or(f.CPUs, 1)}
	if err := b.bytes(where.to("memory"), f.Memory, &m.RAM); err != nil {
		return err
	}
	g := lab.Guest{Name: name, Driver: f.Driver, IOMMU: f.IOMMU}
	if err := g.CheckMachine(m.RAM, m.CPUs); err != nil {
		return b.field(where, err)
	}
	switch {
	case f.Driver != "" && f.Driver != lab.DriverNode && f.Driver != lab.DriverVNICGPU:
		return b.wrong(where.to("driver"), "driver %s: %s or %s", f.Driver, lab.DriverNode, lab.DriverVNICGPU)
	case len(f.NICs) == 0 || len(f.NICs) > maxNICs:
		return b.wrong(where.to("nics"), "%s has %d NICs: 1 to %d", name, len(f.NICs), maxNICs)
	case len(f.Sockets) == 0 && len(f.NICs)+len(f.GPUs) > maxBare:
		return b.wrong(where, "%d NICs and GPUs without a PCIe tree: %d at most, or name sockets that they are below",
			len(f.NICs)+len(f.GPUs), maxBare)
	case b.port+len(f.NICs) > lab.MaxPorts:
		return b.wrong(where, "%d NICs up to here: a lab has %d", b.port+len(f.NICs), lab.MaxPorts)
	case len(f.Sockets) == 0 && len(f.Switches) > 0:
		return b.wrong(where.to("switches"),
			"switches without sockets: name one that they are below, as sockets: [{name: s0}]")
	}
	if err := b.tree(where, &f, &g); err != nil {
		return err
	}
	for i := range f.NICs {
		n, err := b.nic(where.to("nics", i), &f, &f.NICs[i], name)
		if err != nil {
			return err
		}
		own4, own6 := Addrs(i, len(b.out.Guests))
		n.Addr4, n.Addr6 = cmp.Or(n.Addr4, own4), cmp.Or(n.Addr6, own6)
		for _, x := range []struct{ key, value string }{{"mac", net.HardwareAddr(n.MAC[:]).String()},
			{"ipv4", n.Addr4.Addr().String()}, {"ipv6", n.Addr6.Addr().String()}} {
			if b.given[x.value] {
				return b.wrong(where.to("nics", i, x.key), "%s has the %s %s, as another NIC has", n.Name, x.key, x.value)
			}
			b.given[x.value] = true
		}
		if err := b.addresses(where, i, &n, g.NICs); err != nil {
			return err
		}
		g.NICs = append(g.NICs, n)
		b.port++
	}
	for i := range f.GPUs {
		p := &f.GPUs[i]
		mem := uint64(defaultGPU)
		if err := b.bytes(where.to("gpus", i, "memory"), p.Memory, &mem); err != nil {
			return err
		}
		if mem > maxMemory {
			return b.wrong(where.to("gpus", i, "memory"), "memory of %s: at most 4T", lab.FormatBytes(mem))
		}
		slot, err := b.slot(where.to("gpus", i), &f, p.Slot)
		if err != nil {
			return err
		}
		g.GPUs = append(g.GPUs, lab.GPU{Name: name + "." + p.Name, Memory: mem, Slot: slot, Hotplug: p.Hotplug})
	}
	b.out.Guests, b.out.Machines = append(b.out.Guests, g), append(b.out.Machines, m)
	return b.reaches(where, &g)
}

func (b *builder) nic(where path, f *Guest, n *NIC, guest string) (out lab.NIC, err error) {
	out = lab.NIC{Name: guest + "." + n.Name, Model: cmp.Or(n.Model, lab.Virtio),
		QueuePairs: n.Queues, MAC: lab.MAC(b.port),
		NICOptions: n.NICOptions}
	out.Hotplug, out.Timestamps = n.Hotplug, n.Timestamps
	if out.Slot, err = b.slot(where, f, n.Slot); err != nil {
		return out, err
	}
	if err = b.rate(where.to("rate"), n.Rate, &out.Rate); err != nil {
		return out, err
	}
	if n.MAC != "" {
		a, err := lab.ParseAllowedMACs(n.MAC)
		if err != nil || len(a.List) != 1 {
			return out, b.wrong(where.to("mac"), "mac is one address of a NIC, as 02:76:6e:69:00:01")
		}
		out.MAC = wire.MAC(a.List[0])
	}
	for _, a := range []struct {
		key, text string
		is4       bool
		to        *netip.Prefix
	}{{"ipv4", n.IPv4, true, &out.Addr4}, {"ipv6", n.IPv6, false, &out.Addr6}} {
		if a.text == "" {
			continue
		}
		if *a.to, err = netip.ParsePrefix(a.text); err != nil || a.to.Addr().Is4() != a.is4 || a.to.Addr().Zone() != "" ||
			!a.to.Addr().IsGlobalUnicast() {
			return out, b.wrong(where.to(a.key), "%s is an address of a guest with the length of its prefix, as %s", a.key,
				map[bool]string{true: "10.0.0.1/24", false: "fd00::1/64"}[a.is4])
		}
	}
	if n.GPUs == nil {
		return out, nil
	}
	out.GPUs = []int{}
	for i, name := range *n.GPUs {
		j := slices.IndexFunc(f.GPUs, func(g GPU) bool { return g.Name == name })
		if j < 0 {
			return out, b.wrong(where.to("gpus", i), "%s is no GPU of the guest", name)
		}
		if slices.Contains(out.GPUs, j) {
			return out, b.wrong(where.to("gpus", i), "%s is there twice", name)
		}
		out.GPUs = append(out.GPUs, j)
	}
	return out, nil
}

func (b *builder) links() error {
	seen := make(map[string]bool)
	for i, l := range b.file.Links {
		where := path{"links", i}
		n := b.find(l.nic)
		switch {
		case n == nil:
			return b.wrong(where.to("of"), "%q is no NIC: guest and NIC, as %s", l.nic, b.out.Guests[0].NICs[0].Name)
		case seen[l.nic]:
			return b.wrong(where.to("of"), "the link of %s is there twice", l.nic)
		}
		seen[l.nic] = true
		for _, f := range lab.Impairments() {
			if text := l.text[f.Key]; text != "" {
				if err := f.Set(&n.Link.Up, text); err != nil {
					return b.wrong(where.to(f.Key), "%v", err)
				}
			}
		}
		if err := lab.CheckLink(&n.Link.Up); err != nil {
			return b.wrong(where.to("limit"), "%v", err)
		}
	}
	return nil
}

func (b *builder) script() error {
	if n := len(b.file.Script); n > lab.MaxEvents {
		return b.wrong([]any{"script"}, "%d changes: a lab has %d at most", n, lab.MaxEvents)
	}
	for i, e := range b.file.Script {
		where := path{"script", i}
		when, err := lab.ParseTime(string(e.At), maxScript)
		if err != nil {
			return b.wrong(where.to("at"), "at is %q: %v", e.At, err)
		}
		c, err := lab.ParseChange(e.Set)
		if err == nil {
			err = b.names(&c)
		}
		if err != nil {
			return b.wrong(where.to("set"), "%v", err)
		}
		b.out.Script = append(b.out.Script, lab.Event{At: when, Change: c})
	}
	b.out.HotplugFor(b.out.Script)
	return nil
}

func (b *builder) names(c *lab.Change) error {
	if c.Kind != lab.KindGPU {
		if b.find(c.Of) == nil {
			return fmt.Errorf("%q is no NIC: guest and NIC, as %s", c.Of, b.out.Guests[0].NICs[0].Name)
		}
		return nil
	}
	some := ""
	for i := range b.out.Guests {
		for _, g := range b.out.Guests[i].GPUs {
			if g.Name == c.Of {
				return nil
			}
			some = cmp.Or(some, g.Name)
		}
	}
	if some == "" {
		return fmt.Errorf("%q is no GPU: the lab has none", c.Of)
	}
	return fmt.Errorf("%q is no GPU: guest and GPU, as %s", c.Of, some)
}

const maxScript = 24 * time.Hour

func (b *builder) find(name string) *lab.NIC {
	for n := range b.out.AllNICs() {
		if n.Name == name {
			return n
		}
	}
	return nil
}

func (b *builder) rate(where path, text Quantity, to *float64) (err error) {
	if text == "" {
		return nil
	}
	if *to, err = lab.ParseRate(string(text)); err != nil {
		return b.wrong(where, "%s is no rate here: %v", text, err)
	}
	return nil
}

func (b *builder) bytes(where path, text Quantity, to *uint64) error {
	if text == "" {
		return nil
	}
	n, err := lab.ParseBytes(string(text))
	if err != nil {
		return b.wrong(where, "%s is %v", text, err)
	}
	*to = n
	return nil
}

// path is a place in a YAML file: keys of mappings, and indexes in sequences.
type path []any

func (p path) to(steps ...any) path { return append(slices.Clip(p), steps...) }
