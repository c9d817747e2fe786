package devmem

import "net/netip"

// Holder is a connection that holds tokens of a binding, which its user has not returned by [Conn.DontNeed].
type Holder struct {
	Binding uint32         `json:"binding"`
	Local   netip.AddrPort `json:"local"`
	Remote  netip.AddrPort `json:"remote"`
	Tokens  int            `json:"tokens"`
}

// Holders lists the connections that hold tokens of a device's bindings; known is false if the implementation
// has no such list.
func Holders(d Device) (list []Holder, known bool) {
	h, known := d.(interface{ Holders() []Holder })
	if known {
		list = h.Holders()
	}
	return list, known
}
