package labfile

import (
	"net"
	"strconv"

	"github.com/goccy/go-yaml"

	"vnic.dev/vnic/internal/lab"
)

// YAML returns the lab as a lab file in which most defaults are written out.
func (l *Lab) YAML() ([]byte, error) {
	on := "on"
	if l.NoP2P {
		on = "off"
	}
	out := struct {
		Guests  yaml.MapSlice   `yaml:"guests"`
		Links   []yaml.MapSlice `yaml:"links,omitempty"`
		Uplinks []Uplink        `yaml:"uplinks,omitempty"`
		Script  []Event         `yaml:"script,omitempty"`
		Gateway string          `yaml:"gateway,omitempty"`
		Accel   string          `yaml:"accel,omitempty"`
		P2P     string          `yaml:"p2p"`
		Seed    *uint64         `yaml:"seed,omitempty"`
		Scale   Quantity        `yaml:"scale"`
	}{Gateway: l.Gateway, Accel: l.Accel, P2P: on, Seed: l.Seed}
	for _, c := range l.Uplinks {
		out.Uplinks = append(out.Uplinks, uplinkOf(c))
	}
	d := l.Complete()
	out.Scale = Quantity(strconv.FormatFloat(d.Scale, 'g', -1, 64))
	for i := range d.Guests {
		g := &d.Guests[i]
		out.Guests = append(out.Guests, yaml.MapItem{Key: g.Name, Value: l.guest(i, g)})
		for _, n := range g.NICs {
			if x := linkOf(&n); x != nil {
				out.Links = append(out.Links, x)
			}
		}
	}
	for _, e := range l.Script {
		out.Script = append(out.Script, Event{Quantity(e.At.String()), e.Change.String()})
	}
	return yaml.MarshalWithOptions(out, yaml.Indent(2), yaml.IndentSequence(true))
}

func (l *Lab) guest(i int, g *lab.Guest) Guest {
	f := Guest{Memory: Quantity(lab.FormatBytes(l.Machines[i].RAM)), CPUs: l.Machines[i].CPUs, Driver: g.Driver,
		IOMMU: g.IOMMU, Interconnect: make(map[string]Quantity)}
	for _, s := range g.Sockets {
		f.Sockets = append(f.Sockets, Socket{s.Name, s.Routing.String(), rateOf(s.DRAM, lab.FormatByteRate)})
	}
	for _, x := range g.Interconnects {
		f.Interconnect[x.From+"-"+x.To] = rateOf(x.Rate, lab.FormatByteRate)
	}
	for _, s := range g.Switches {
		f.Switches = append(f.Switches, Switch{s.Name, slotOf(s.Slot)})
	}
	for _, m := range g.GPUs {
		f.GPUs = append(f.GPUs, GPU{g.Local(m.Name), slotOf(m.Slot), Quantity(lab.FormatBytes(m.Memory)), m.Hotplug})
	}
	for _, n := range g.NICs {
		nic := NIC{Name: g.Local(n.Name), Model: n.Model, Slot: slotOf(n.Slot), NICOptions: n.NICOptions,
			Queues: n.QueuePairs, Rate: rateOf(n.Rate, lab.FormatBitRate), Hotplug: n.Hotplug, Timestamps: n.Timestamps,
			MAC: net.HardwareAddr(n.MAC[:]).String(), IPv4: n.Addr4.String(), IPv6: n.Addr6.String()}
		if nic.MaxMTU == nic.MTU {
			nic.MaxMTU = 0 // the default
		}
		reached := []string{}
		for j := range g.GPUs {
			if n.Reaches(j) {
				reached = append(reached, f.GPUs[j].Name)
			}
		}
		if len(g.GPUs) > 0 {
			nic.GPUs = &reached
		}
		f.NICs = append(f.NICs, nic)
	}
	return f
}

func rateOf(r float64, format func(float64) string) Quantity {
	if r == 0 {
		return ""
	}
	return Quantity(format(r))
}

func slotOf(s lab.Slot) Slot {
	link, _ := s.Link.MarshalText()
	return Slot{s.Below, string(link), s.Redirect}
}
