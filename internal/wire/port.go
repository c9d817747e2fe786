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

// Has reports whether the type is in the set. GSONone always is.
func (m GSOMask) Has(t splitter.GSOType) bool { return t == splitter.GSONone || m>>t&1 != 0 }

// Limits are the packets that a port accepts. The port's link segments others, completes their checksums, or drops
// them.
type Limits struct {
	GSO      GSOMask // GSO packets that the port accepts whole; none without Csum
	ECN      bool    // GSO packets with CWR or Meta.ECN
	Csum     bool    // CsumPartial of TCP and UDP, with start and offset from splitter.CsumPlace
	MaxFrame uint32  // longest frame, or segment of a GSO packet, with link header but without tags; 0: any
	MaxBytes uint32  // longest GSO packet, headers included; 0: any
}

func (l *Limits) fits(h *splitter.Headers, n uint32) bool {
	return l.MaxFrame == 0 || n <= l.MaxFrame+4*uint32(h.VLANs)
}

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

// cwr reports whether a packet has TCP's CWR flag, which of a GSO packet only the first segment may have.
func cwr(m *splitter.Meta) bool {
	return m.Headers.Class == splitter.TCP && m.Headers.TCPFlags&splitter.CWR != 0
}

// RestartObserver is a Port with state for machines behind other ports.
type RestartObserver interface {
	// PortRestarted is called by Link.Restarted when the machine behind l has lost the state of its connections,
	// or when l has been detached from the switch. It must not wait.
	PortRestarted(l *Link)
}

// Port is a receiver on the wire: Switch.Attach connects it to a switch.
type Port interface {
	Name() string
	Limits() Limits // may change at any time; the link calls it once for each run of packets
	// Deliver sets the Verdict of each packet. It must not wait, write anything else in the packets except
	// Progress.Arrives, or keep them, their headers or their segments. Several goroutines may call it at
	// the same time, each with its own Worker; the port must not send with that Worker. Within one flow, once a packet
	// is Busy, the later ones of the batch must be Busy too.
	Deliver(w *Worker, batch []*Packet)
}
