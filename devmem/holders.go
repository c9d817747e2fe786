package devmem

import "net/netip"

// Holder is a connection that holds tokens of a binding: pages that its user was given, and has not returned by
// [Conn.DontNeed].
type Holder struct {
	Binding uint32         `json:"binding"`
	Local   netip.AddrPort `json:"local"`
	Remote  netip.AddrPort `json:"remote"`
	Tokens  int            `json:"tokens"`
}

// Holders says who holds tokens of a device's bindings, in no order; known is false if the implementation cannot say.
// It looks at every token that is held.
func Holders(d Device) (list []Holder, known bool) {
	h, known := d.(interface{ Holders() []Holder })
	if known {
		list = h.Holders()
	}
	return list, known
}
