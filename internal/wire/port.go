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

// Limits is what a port accepts. Packets beyond it are segmented, completed or dropped before they
// reach the port.
type Limits struct {
	GSO      GSOMask // GSO packets that it accepts whole; none without Csum
	ECN      bool    // GSO packets with CWR
	Csum     bool    // CsumPartial of TCP and UDP, with start and offset from splitter.CsumPlace
	MaxFrame uint32  // longest frame, or segment of a GSO packet, with link header but without tags; 0: any
	MaxBytes uint32  // longest GSO packet, headers included; 0: any
}

// fits reports whether a frame of n bytes, or a GSO packet's segment of n bytes, is not too big.
func (l *Limits) fits(h *splitter.Headers, n uint32) bool {
	return l.MaxFrame == 0 || n <= l.MaxFrame+4*uint32(h.VLANs)
}

// takes reports whether the port accepts the packet as it is.
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

// cwr reports whether a GSO packet needs the ECN treatment: CWR only on its first segment.
func cwr(m *splitter.Meta) bool {
	return m.Headers.Class == splitter.TCP && m.Headers.TCPFlags&splitter.CWR != 0
}

// RestartObserver is a Port with state for machines behind other ports: it is notified when one
// restarts.
type RestartObserver interface {
	// PortRestarted is called when the machine behind a link has lost all state of its connections:
	// its device was reset, has another driver, or has lost its frontend. It is called on that
	// port's control goroutine, and must not wait.
	PortRestarted(l *Link)
}

// Port is a receiver attached to the wire.
type Port interface {
	Name() string
	Limits() Limits // may change at any time; read once for each run of packets
	// Deliver sets the Verdict of each packet. It must not wait, write anything else in the
	// packets, or keep them, their headers or their segments. Many senders call it at once, each
	// with its own Worker, with which it must not send. Within one flow, once a packet is Busy all
	// later ones of the batch must be Busy too.
	Deliver(w *Worker, batch []*Packet)
}
