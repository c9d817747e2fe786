package wire

import "vnic.dev/vnic/splitter"

// GSOMask is a set of GSO types.
type GSOMask uint8

// Has says whether the type is in the set. GSONone always is.
func (m GSOMask) Has(t splitter.GSOType) bool { return t == splitter.GSONone || m>>t&1 != 0 }

// GSO makes a mask of types.
func GSO(types ...splitter.GSOType) GSOMask { return 0 }

// Limits is what a port takes. Packets beyond it are cut, completed or dropped before they reach the port.
type Limits struct {
	GSO      GSOMask // super-packets it takes whole; needs Csum
	ECN      bool    // super-packets with CWR
	Csum     bool    // CsumPartial
	MaxFrame uint32  // longest frame that is no super-packet, link header included; 0: any
	MaxBytes uint32  // longest super-packet, headers included; 0: any
}

// Port is a receiver attached to the wire.
type Port interface {
	Name() string
	Limits() Limits // may change at any time; asked once per run of packets
	// Deliver sets the Verdict of each packet. It never waits. It may write neither to the packets (but for Verdict)
	// nor keep them, their headers or their segments. It is called by many senders at once, each with its own Worker.
	// Within one flow, once a packet was Busy all later ones of the batch are Busy too.
	Deliver(w *Worker, batch []*Packet)
}
