package virtq

// Base is the position at which a ring goes on: how far the device has consumed chains and, in some
// formats, how far it has returned them. Only the ring interprets a Base; other code stores it,
// compares two for equality, or passes it to another Device of the same ring. The zero Base is the
// start of a split ring.
type Base struct{ state uint32 }

// BaseOf returns the Base for a transport's number: vhost-user's SET_VRING_BASE, in the encoding of
// the ring's format.
func BaseOf(state uint32) Base { return Base{state} }

// State returns the number that a transport carries for the base: vhost-user's GET_VRING_BASE.
func (b Base) State() uint32 { return b.state }
