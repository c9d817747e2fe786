package devmem

import "net/netip"

// Holder is a connection that holds tokens of a binding.
type Holder struct {
	Binding uint32         `json:"binding"`
	Local   netip.AddrPort `json:"local"`
	Remote  netip.AddrPort `json:"remote"`
	Tokens  int            `json:"tokens"`
}

// Holders lists a device's connections that hold tokens, once for each binding; known is false if the device's
// implementation has no such list.
func Holders(d Device) (list []Holder, known bool) {
	h, known := d.(interface{ Holders() []Holder })
	if known {
		list = h.Holders()
	}
	return list, known
}
