package control

// State is all that commands have set up on a port. It can be encoded (encoding/json) and put back; it dies with
// device reset.
type State struct {
	Generation uint32
	Splits     []Split // one for each receive queue, in order
	RSS        RSS
	Rules      []FlowRule
	Buffers    []Buffer
	Bindings   []Binding
	Meters     []Meter
	LastID     uint32 // of rules, buffers, bindings and meters
}
