package virtq

// Base is the position in a ring from which a device goes on. The zero Base is the start of a split ring.
type Base struct{ state uint32 }

// BaseOf returns the Base for the number in vhost-user's SET_VRING_BASE.
func BaseOf(state uint32) Base { return Base{state} }

// State returns the number for vhost-user's answer to GET_VRING_BASE.
func (b Base) State() uint32 { return b.state }
