package gateway

import (
	"sync/atomic"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/ether"
	"vnic.dev/vnic/internal/wire"
	"vnic.dev/vnic/splitter"
)

type port struct {
	name      string
	mac       wire.MAC
	limits    wire.Limits
	filter    filter
	count     *counters
	in        *inbox
	ep        *endpoint
	solicited chan struct{} // capacity 1: run puts a value when a router solicitation comes
	done      chan struct{} // closed when run has ended
	stats     func() Stats
	restarted func(owner) // called by PortRestarted; may be nil

	// unreachable may answer a ping for which pingBeyond is true, with an ICMP error; run's goroutine calls it.
	unreachable func(proto tcpip.NetworkProtocolNumber, pkt *stack.PacketBuffer)

	// from is the wire.Packet.From of the frame that run has passed to netstack last, for code that runs on run's
	// goroutine. For a reassembled packet it is of the fragment that came last.
	from atomic.Uint32
}

// sender returns the sender of the frame that netstack processes now: the port of the switch from which the frame came.
// It is for code that netstack calls on run's goroutine.
func (p *port) sender() owner { return owner{link: p.from.Load()} }

var (
	_ wire.Port            = (*port)(nil)
	_ wire.RestartObserver = (*port)(nil)
)

// portLimits returns the limits of a gateway's port, for packets and segments of at most mtu bytes.
func portLimits(mtu int) wire.Limits {
	return wire.Limits{
		GSO: wire.GSO(splitter.GSOTCPv4, splitter.GSOTCPv6), ECN: true, Csum: true,
		MaxFrame: uint32(mtu) + splitter.EthLen, MaxBytes: 65535 + splitter.EthLen,
	}
}

// Name implements wire.Port.
func (p *port) Name() string { return p.name }

// Stats returns the gateway's Stats.
func (p *port) Stats() Stats { return p.stats() }

// PortRestarted implements wire.RestartObserver.
func (p *port) PortRestarted(l *wire.Link) {
	if p.restarted != nil {
		p.restarted(owner{link: l.Serial()})
	}
}

// Limits implements wire.Port.
func (p *port) Limits() wire.Limits { return p.limits }

// Deliver implements wire.Port: it copies the frames that it accepts to the inbox.
func (p *port) Deliver(w *wire.Worker, batch []*wire.Packet) {
	var buf [splitter.MaxHeader]byte
	in := p.in.lane(batch[0].From) // a batch comes from one port
	for i, pkt := range batch {
		checked, ok := p.wants(w, pkt, &buf)
		beyond := !ok && p.filter.pingBeyond(&pkt.Meta.Headers, checked)
		if !ok && !beyond {
			p.count.filtered.Add(1)
			pkt.Verdict = wire.Drop(wire.DropUnknownDst)
			continue
		}
		n := int(pkt.Len()) - int(pkt.Meta.Headers.L3Off)
		full, closed := in.reserve(n)
		switch {
		case closed:
			pkt.Verdict = wire.Drop(wire.DropStopped)
			continue
		case full:
			for _, rest := range batch[i:] {
				rest.Verdict = wire.Verdict{Kind: wire.Busy, Queue: in}
			}
			return
		}
		a, reason := receive(w, pkt, checked, n)
		if reason != wire.DropNone {
			in.unreserve(n)
			pkt.Verdict = wire.Drop(reason)
			continue
		}
		if !allowedICMP(&pkt.Meta.Headers, a.view.AsSlice()) {
			in.unreserve(n)
			a.release()
			p.count.filtered.Add(1)
			pkt.Verdict = wire.Drop(wire.DropUnknownDst)
			continue
		}
		if asksForAnother(&pkt.Meta.Headers, pkt.Src, a.view.AsSlice()) {
			in.unreserve(n)
			a.release()
			p.count.badDHCP.Add(1)
			pkt.Verdict = wire.Drop(wire.DropMAC)
			continue
		}
		a.beyond = beyond
		in.put(a)
		pkt.Verdict = wire.Verdict{Kind: wire.Taken, Queue: in}
	}
}

// wants reports whether a packet has the gateway's MAC or a group address, and the filter admits it. It returns the
// bytes at the packet's start that the filter has checked, in the Header or in buf; nil for another MAC.
func (p *port) wants(w *wire.Worker, pkt *wire.Packet, buf *[splitter.MaxHeader]byte) (checked []byte, ok bool) {
	if pkt.Dst != p.mac && pkt.Dst[0]&1 == 0 {
		return nil, false
	}
	h := &pkt.Meta.Headers
	if h.Class == splitter.TCP || h.Class == splitter.UDP {
		return pkt.Header, p.filter.admits(h, pkt.Header)
	}
	// The filter needs up to JudgedLen bytes. Only the link header is sure to be in the Header.
	checked = buf[:min(len(buf), int(h.JudgedLen()))]
	n := copy(checked, pkt.Header)
	if k, err := w.Copier.Read(checked[n:], pkt.Payload); err == nil {
		n += k
	}
	checked = checked[:n]
	return checked, p.filter.admits(h, checked)
}

// receive copies a packet, n bytes from its network header on, or returns why to drop it. It verifies the TCP or UDP
// checksum of a CsumNone packet that is no fragment. It takes the first bytes from checked, because the sender may
// have changed its memory since the filter checked them.
func receive(w *wire.Worker, pkt *wire.Packet, checked []byte, n int) (arrived, wire.DropReason) {
	h := &pkt.Meta.Headers
	a := arrived{from: pkt.From, proto: h.EtherType, group: pkt.Dst[0]&1 != 0,
		fragment: h.Class == splitter.Fragment}
	hdr := len(pkt.Header) - int(h.L3Off)
	var b, payload []byte
	if h.Class == splitter.TCP && hdr < n { // of a single view netstack would copy the payload when it reads headers
		a.view, a.payload = buffer.NewViewSize(hdr), buffer.NewViewSize(n-hdr)
		b, payload = a.view.AsSlice(), a.payload.AsSlice()
	} else {
		a.view = buffer.NewViewSize(n)
		b = a.view.AsSlice()
		payload = b[hdr:]
	}
	copy(b, pkt.Header[h.L3Off:])
	if k, err := w.Copier.Read(payload, pkt.Payload); err != nil || k != len(payload) {
		a.release()
		return arrived{}, wire.DropFault
	}
	if int(h.L3Off) < len(checked) {
		copy(b, checked[h.L3Off:])
	}
	bad := pkt.Meta.Csum == splitter.CsumBad
	if pkt.Meta.Csum == splitter.CsumNone && (h.Class == splitter.TCP || h.Class == splitter.UDP) {
		covered := h.PayloadLen() // without a trailer
		sum := dma.Fold(dma.Checksum(payload[:covered], 0))
		bad = splitter.VerifyL4(h, pkt.Header, covered, sum) == splitter.CsumBad
	}
	if bad {
		a.release()
		return arrived{}, wire.DropBadCsum
	}
	if l4 := int(h.L4Off) - int(h.L3Off); h.IPv6 && h.Proto == protoICMPv6 && h.Class == splitter.OtherIP && l4 < n {
		a.solicited = b[l4] == ndRouterSolicit
	}
	return a, wire.DropNone
}

func (p *port) run() {
	defer close(p.done)
	var batch []arrived
	for range p.in.filled {
		closed := p.in.closed.Load()
		for batch = p.in.take(batch[:0]); len(batch) > 0; batch = p.in.take(batch[:0]) {
			for i := range batch {
				p.inject(&batch[i], closed)
				batch[i] = arrived{}
			}
		}
		if closed {
			return
		}
	}
}

func (p *port) inject(a *arrived, closed bool) {
	d := p.ep.Dispatcher()
	if closed || d == nil {
		a.release()
		return
	}
	if a.solicited {
		ether.Signal(p.solicited)
	}
	p.count.received.Add(1)
	p.from.Store(a.from)
	p.ep.fragment.Store(a.fragment)
	b := buffer.MakeWithView(a.view)
	if a.payload != nil {
		payload := buffer.MakeWithView(a.payload)
		b.Merge(&payload)
	}
	pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: b})
	if a.group {
		pkt.PktType = tcpip.PacketBroadcast
	}
	defer pkt.DecRef()
	if a.beyond {
		p.unreachable(tcpip.NetworkProtocolNumber(a.proto), pkt)
		return
	}
	d.DeliverNetworkPacket(tcpip.NetworkProtocolNumber(a.proto), pkt)
}
