package lab

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"vnic.dev/vnic/internal/wire"
)

// AllowedMACs are the source MACs that guests may use besides their NIC's.
type AllowedMACs struct {
	Any  bool // any unicast MAC, while neither another port nor the gateway uses it
	List []wire.MAC
}

// ParseAllowedMACs parses "any", or a list of MACs with commas between them.
func ParseAllowedMACs(s string) (a AllowedMACs, err error) {
	if s == "any" {
		return AllowedMACs{Any: true}, nil
	}
	for _, w := range strings.Split(s, ",") {
		hw, err := net.ParseMAC(w)
		if err != nil || len(hw) != len(wire.MAC{}) {
			return a, fmt.Errorf("%q is no MAC, as 02:aa:bb:cc:dd:01: give MACs with commas, or any", w)
		}
		m := wire.MAC(hw)
		switch {
		case m[0]&1 != 0, m == wire.MAC{}, m == wire.ControlMAC:
			return a, fmt.Errorf("no frame may come from %s", w)
		case m == MAC(gatewayHost-1):
			return a, fmt.Errorf("%s is the gateway's", w)
		case slices.Contains(a.List, m):
			return a, fmt.Errorf("%s twice", w)
		case len(a.List) == wire.MaxBindings:
			return a, fmt.Errorf("more than %d: give any", wire.MaxBindings)
		}
		a.List = append(a.List, m)
	}
	return a, nil
}

// String returns the MACs in ParseAllowedMACs's syntax; "": none.
func (a AllowedMACs) String() string {
	if a.Any {
		return "any"
	}
	var words []string
	for _, m := range a.List {
		words = append(words, net.HardwareAddr(m[:]).String())
	}
	return strings.Join(words, ",")
}

// Identify allows each guest to send from the allowed MACs and from its NIC's MAC. With learned, the source
// of the guest's first accepted frame replaces the NIC's MAC.
func (d *Description) Identify(a AllowedMACs, learned bool) {
	for n := range d.AllNICs() {
		n.Link.Identity = &wire.Identity{Also: a.List, Any: a.Any, Learn: learned}
	}
}

// refused reports a refused frame to Options.Note, or, if Note is nil, to the log.
func (p *Port) refused(r wire.Refusal) {
	text := refusalText(r)
	if r.More > 0 {
		text += fmt.Sprintf(" (and %d frames since the last such line)", r.More)
	}
	if note := p.lab.opt.Note; note != nil {
		note(p.Name, text)
		return
	}
	p.lab.opt.Log.Warn("frame dropped", "port", p.Name, "reason", r.Reason.String(), "why", text)
}

func refusalText(r wire.Refusal) string {
	const idle = wire.BindingIdle / time.Second
	mac := net.HardwareAddr(r.MAC[:]).String()
	s := r.Reason.String() + ": the guest's frames from "
	switch {
	case r.Reason == wire.DropMAC && r.Holder != "":
		return s + "MAC " + mac + " are dropped: it is the address of " + r.Holder + ", and no flag gives it to another"
	case r.Reason == wire.DropMAC && r.Full:
		return s + fmt.Sprintf("MAC %s are dropped: it has %d already: one that is not used for %d s makes room", mac,
			wire.MaxBindings, idle)
	case r.Reason == wire.DropMAC && (r.MAC[0]&1 != 0 || r.MAC == wire.MAC{}):
		return s + "MAC " + mac + " are dropped: no host can have that address"
	case r.Reason == wire.DropMAC:
		return s + "MAC " + mac + " are dropped, as it is not the NIC's: --allow-mac " + mac + ", or --allow-mac any, lets " +
			"them pass"
	case r.Holder != "":
		return s + fmt.Sprintf("%s are dropped: it is the address of %s: give the guest another, or have that one end its "+
			"use (a DHCP release, or %d s without a frame)", r.Addr, r.Holder, idle)
	case r.Full:
		return s + fmt.Sprintf("%s are dropped: it has %d addresses already: one that is not used for %d s makes room",
			r.Addr, wire.MaxBindings, idle)
	}
	return s + r.Addr.String() + " are dropped: no host can have that address"
}
