package lab

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"vnic.dev/vnic/wire"
)

// ParseAllowMAC reads which MACs guests may send from beside their NIC's: "" (none), "any", or a list
// with commas.
func ParseAllowMAC(s string) (also []wire.MAC, anyMAC bool, err error) {
	switch s {
	case "":
		return nil, false, nil
	case "any":
		return nil, true, nil
	}
	for _, w := range strings.Split(s, ",") {
		hw, err := net.ParseMAC(strings.TrimSpace(w))
		if err != nil || len(hw) != 6 {
			return nil, false, fmt.Errorf("--allow-mac %s: %q is no MAC, as 02:aa:bb:cc:dd:01; or give any alone", s, w)
		}
		m := wire.MAC(hw)
		switch {
		case m[0]&1 != 0, m == wire.MAC{}, m == wire.ControlMAC:
			err = errors.New("a frame cannot come from it")
		case m == MAC(gatewayHost-1):
			err = errors.New("it is the gateway's")
		case slices.Contains(also, m):
			err = errors.New("twice")
		case len(also) == wire.MaxClaims:
			err = fmt.Errorf("more than %d: give any", wire.MaxClaims)
		}
		if err != nil {
			return nil, false, fmt.Errorf("--allow-mac %s: %w", w, err)
		}
		also = append(also, m)
	}
	return also, false, nil
}

// refused tells of a frame whose source addresses are not the port's.
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

// refusalText says what was refused and what to do.
func refusalText(r wire.Refusal) string {
	mac := net.HardwareAddr(r.MAC[:]).String()
	s := r.Reason.String() + ": the guest's frames from "
	switch {
	case r.Reason == wire.DropMAC && r.Holder != "":
		return s + "MAC " + mac + " are dropped: it is the address of " + r.Holder + ", and no flag gives it to another"
	case r.Reason == wire.DropMAC && r.Full:
		return s + fmt.Sprintf("MAC %s are dropped: it has %d already: one that is not used for %v makes room", mac,
			wire.MaxClaims, wire.ClaimIdle)
	case r.Reason == wire.DropMAC:
		return s + "MAC " + mac + " are dropped, as it is not the NIC's: --allow-mac " + mac + ", or --allow-mac any, lets " +
			"them pass"
	case r.Holder != "":
		return s + fmt.Sprintf("%s are dropped: it is the address of %s: give the guest another, or have that one end its "+
			"use (a DHCP release, or %v without a frame)", r.Addr, r.Holder, wire.ClaimIdle)
	case r.Full:
		return s + fmt.Sprintf("%s are dropped: it has %d addresses already: one that is not used for %v makes room", r.Addr,
			wire.MaxClaims, wire.ClaimIdle)
	}
	return s + r.Addr.String() + " are dropped: no host can have that address"
}
