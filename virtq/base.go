package virtq

// Base says where a ring goes on: what has been consumed of it, and for some formats what has been
// returned. It is a ring's own; others keep it, compare two, and hand it back to another Device of
// the same ring. The zero Base is where a split ring starts.
type Base struct{ state uint32 }

// BaseOf returns the base that a transport was given, as vhost-user's SET_VRING_BASE, which has the ring's encoding.
func BaseOf(state uint32) Base { return Base{state} }

// State is what a transport carries of the base, as vhost-user's GET_VRING_BASE.
func (b Base) State() uint32 { return b.state }
