package wire

import "vnic.dev/vnic/splitter"

// GSOMask is a set of GSO types.
type GSOMask uint8

// GSO makes a set of types.
func GSO(types ...splitter.GSOType) (m GSOMask) {
	for _, t := range types {
		m |= 1 << t
	}
	return m
}

// Has says whether the type is in the set. GSONone always is.
func (m GSOMask) Has(t splitter.GSOType) bool { return t == splitter.GSONone || m>>t&1 != 0 }

// Limits is what a port takes. Packets beyond it are cut, completed or dropped before they reach the port.
type Limits struct {
	GSO      GSOMask // GSO packets it takes whole; none without Csum
	ECN      bool    // GSO packets with CWR
	Csum     bool    // CsumPartial, of TCP and UDP: start and offset are splitter.CsumPlace's
	MaxFrame uint32  // longest frame, and segment of a GSO packet, with link header but without tags; 0: any
	MaxBytes uint32  // longest GSO packet, headers included; 0: any
}

// fits says whether a frame of n bytes, or of a GSO packet a segment of that, is not too big.
func (l *Limits) fits(h *splitter.Headers, n uint32) bool {
	return l.MaxFrame == 0 || n <= l.MaxFrame+4*uint32(h.VLANs)
}

// takes says whether the port takes the packet as it is.
func (l *Limits) takes(p *Packet) bool {
	m := &p.Meta
	if m.GSOType == splitter.GSONone {
		if !l.fits(&m.Headers, p.Len()) {
			return false
		}
	} else if !l.Csum || !l.GSO.Has(m.GSOType) || !l.ECN && (m.ECN || cwr(m)) || l.MaxBytes != 0 && p.Len() > l.MaxBytes ||
		!l.fits(&m.Headers, uint32(m.Headers.HdrLen)+uint32(m.GSOSize)) {
		return false
	}
	return m.Csum != splitter.CsumPartial || l.Csum
}

// cwr says whether a GSO packet needs the ECN treatment: CWR on its first segment only.
func cwr(m *splitter.Meta) bool {
	return m.Headers.Class == splitter.TCP && m.Headers.TCPFlags&splitter.CWR != 0
}

// RestartObserver is a Port that keeps something for machines behind other ports: it hears that one begins anew.
type RestartObserver interface {
	// PortRestarted says that the machine behind a link knows nothing any more of what it has sent and received: its
	// device was reset, has another driver, or nobody behind it. It is called on that port's control goroutine, and
	// does not wait.
	PortRestarted(l *Link)
}

// Port is a receiver attached to the wire.
type Port interface {
	Name() string
	Limits() Limits // may change at any time; asked once per run of packets
	// Deliver sets the Verdict of each packet. It never waits. It may write nothing else in the packets, nor keep them,
	// their headers or their segments. It is called by many senders at once, each with its own Worker, with which it
	// must not send. Within one flow, once a packet was Busy all later ones of the batch are Busy too.
	Deliver(w *Worker, batch []*Packet)
}
