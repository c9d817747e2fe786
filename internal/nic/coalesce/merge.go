package coalesce

import (
	"bytes"
	"encoding/binary"

	"vnic.dev/vnic/splitter"
)

// MaxFrames bounds the frames of a Merge.
const MaxFrames = 256

// maxIP is the length of the longest IP packet that Linux's GRO makes by default (net/core/gro.c,
// skb_gro_receive: below GRO_LEGACY_MAX_SIZE).
const maxIP = 65535

// Offsets and lengths of headers, and DF (RFC 791, 3.1; RFC 8200, 3; RFC 9293, 3.1).
const (
	ipv4Len     = 20
	ipv4Total   = 2
	ipv4ID      = 4
	ipv4Frag    = 6
	ipv4Csum    = 10
	ipv4Src     = 12
	ipv4DF      = 0x4000
	ipv6Len     = 40
	ipv6Payload = 4
	ipv6Next    = 6
	tcpSeq      = 4
	tcpAck      = 8
	tcpOffset   = 12 // the data offset, and bits that are reserved or for accurate ECN
	tcpFlags    = 13
	tcpWindow   = 14
	tcpCsum     = 16
	tcpUrgent   = 18
)

// Possible reports whether a frame could be part of a Merge, by its Meta and its length of payload. Vouched, Begin and
// Continues may still refuse it.
func Possible(m *splitter.Meta, payload uint32) bool {
	h := &m.Headers
	return h.Class == splitter.TCP && m.GSOType == splitter.GSONone && payload > 0 && payload == h.PayloadLen() &&
		h.TCPFlags&^(splitter.PSH|splitter.CWR) == splitter.ACK && (h.IPv6 || h.L4Off-h.L3Off == ipv4Len)
}

// Vouched reports whether a GSO packet may leave out the checksum of a frame for which Possible is true: it is
// CsumGood, or CsumNone but right and not 0xffff, or partial with the value that a segmenter would write. sum is the
// payload's sum (splitter.Sum) if NeedsSum is true, and else not used.
func Vouched(hdr []byte, m *splitter.Meta, payload uint32, sum uint16) bool {
	h := &m.Headers
	field := binary.BigEndian.Uint16(hdr[h.L4Off+tcpCsum:])
	switch m.Csum {
	case splitter.CsumGood:
		return true
	case splitter.CsumPartial:
		return field == splitter.PseudoSum(h, hdr, uint32(h.HdrLen-h.L4Off)+payload)
	case splitter.CsumNone:
		return field != 0xffff && splitter.VerifyL4(h, hdr, payload, sum) == splitter.CsumGood
	}
	return false
}

// NeedsSum reports whether Vouched needs the payload's sum.
func NeedsSum(m *splitter.Meta) bool { return m.Csum == splitter.CsumNone }

// Merge is a sequence of frames of one flow that can become one GSO packet. It refers to the first frame's header and
// Meta, or after Keep to copies of them. These must not change while the Merge is in use.
type Merge struct {
	hdr     []byte
	meta    *splitter.Meta
	mss     uint32
	payload uint32
	max     uint32 // most bytes of payload
	frames  uint32
	fixedID bool
	psh     bool
	ended   bool
}

// Begin makes g the Merge of one frame for which Possible is true; false: none can begin with it, and g is
// empty. max is the length of the longest GSO packet, all headers included.
func (g *Merge) Begin(hdr []byte, m *splitter.Meta, payload, max uint32) bool {
	*g = Merge{}
	h := &m.Headers
	if h.TCPFlags&splitter.PSH != 0 || payload < splitter.MinGSOSize || len(hdr) != int(h.HdrLen) ||
		hdr[h.L4Off+tcpOffset]&15 != 0 || !headerGood(hdr, h) {
		return false
	}
	limit := min(uint32(h.L3Off)+maxIP, max)
	if limit < uint32(h.HdrLen)+payload {
		return false
	}
	*g = Merge{hdr: hdr, meta: m, mss: payload, payload: payload, max: limit - uint32(h.HdrLen), frames: 1}
	return true
}

// headerGood reports whether an IPv4 header has neither fragment bits nor the reserved one, and the checksum that a
// segmenter would write; it returns true for IPv6.
func headerGood(hdr []byte, h *splitter.Headers) bool {
	if h.IPv6 {
		return true
	}
	ip := hdr[h.L3Off:]
	return binary.BigEndian.Uint16(ip[ipv4Frag:])&^ipv4DF == 0 && binary.BigEndian.Uint16(ip[ipv4Csum:]) != 0xffff &&
		splitter.VerifyIPv4(h, hdr)
}

// Keep copies the first frame's header to dst, which has room for splitter.MaxHeader bytes, and its Meta to
// m. The memory of the originals may then be reused; g refers to dst and m instead.
func (g *Merge) Keep(dst []byte, m *splitter.Meta) {
	dst = dst[:copy(dst, g.hdr)]
	*m = *g.meta
	g.hdr, g.meta = dst, m
}

// First returns the first frame's header and Meta.
func (g *Merge) First() (hdr []byte, m *splitter.Meta) { return g.hdr, g.meta }

// MSS returns the payload length of each frame, except that the last one may be shorter.
func (g *Merge) MSS() uint32 { return g.mss }

// Flow reports whether f is the flow of the Merge.
func (g *Merge) Flow(f *splitter.Flow) bool { return g.meta.Headers.Flow == *f }

// Continues reports whether a frame for which Possible is true continues the Merge. The caller checks this
// frame's and the first one's checksums (Vouched).
func (g *Merge) Continues(hdr []byte, m *splitter.Meta, payload uint32) bool {
	h, first := &m.Headers, &g.meta.Headers
	return !g.ended && g.frames < MaxFrames && h.Seq == first.Seq+g.payload && payload <= g.mss &&
		payload <= g.max-g.payload && len(hdr) == len(g.hdr) && h.L3Off == first.L3Off && h.L4Off == first.L4Off &&
		h.IPv6 == first.IPv6 && h.HdrLen == first.HdrLen && g.sameHeader(hdr) && headerGood(hdr, h) && g.follows(hdr)
}

// sameHeader reports whether hdr and the first header agree where segments must. The caller has checked that both have
// the same offsets and lengths.
func (g *Merge) sameHeader(hdr []byte) bool {
	h := &g.meta.Headers
	a, b := g.hdr, hdr
	if !bytes.Equal(a[:h.L3Off], b[:h.L3Off]) {
		return false
	}
	ip, with := a[h.L3Off:h.L4Off], b[h.L3Off:h.L4Off]
	if h.IPv6 {
		if !bytes.Equal(ip[:ipv6Payload], with[:ipv6Payload]) || !bytes.Equal(ip[ipv6Next:], with[ipv6Next:]) {
			return false
		}
	} else if !bytes.Equal(ip[:ipv4Total], with[:ipv4Total]) ||
		!bytes.Equal(ip[ipv4Frag:ipv4Csum], with[ipv4Frag:ipv4Csum]) || !bytes.Equal(ip[ipv4Src:], with[ipv4Src:]) {
		return false
	}
	tcp, as := a[h.L4Off:], b[h.L4Off:]
	return bytes.Equal(tcp[:tcpSeq], as[:tcpSeq]) && bytes.Equal(tcp[tcpAck:tcpFlags], as[tcpAck:tcpFlags]) &&
		(tcp[tcpFlags]^as[tcpFlags])&^splitter.PSH == 0 && bytes.Equal(tcp[tcpWindow:tcpCsum], as[tcpWindow:tcpCsum]) &&
		bytes.Equal(tcp[tcpUrgent:], as[tcpUrgent:])
}

// follows reports whether hdr's IPv4 identification continues the identifications of the Merge. They rise by one, or
// all are equal, which the second frame decides. For IPv6 follows returns true.
func (g *Merge) follows(hdr []byte) bool {
	h := &g.meta.Headers
	if h.IPv6 {
		return true
	}
	ip := g.hdr[h.L3Off:]
	d := binary.BigEndian.Uint16(hdr[h.L3Off+ipv4ID:]) - binary.BigEndian.Uint16(ip[ipv4ID:])
	if d == 0 {
		return g.frames == 1 || g.fixedID
	}
	return !g.fixedID && uint32(d) == g.frames
}

// Add adds a frame for which Continues is true.
func (g *Merge) Add(hdr []byte, m *splitter.Meta, payload uint32) {
	idOff := g.meta.Headers.L3Off + ipv4ID
	if g.frames == 1 && !m.Headers.IPv6 {
		g.fixedID = hdr[idOff] == g.hdr[idOff] && hdr[idOff+1] == g.hdr[idOff+1]
	}
	g.frames++
	g.payload += payload
	g.psh = m.Headers.TCPFlags&splitter.PSH != 0
	g.ended = g.psh || payload < g.mss
}

// Frames returns the number of frames.
func (g *Merge) Frames() int { return int(g.frames) }

// Payload returns the sum of the frames' payload lengths.
func (g *Merge) Payload() uint32 { return g.payload }

// Ended reports whether no frame can continue the Merge.
func (g *Merge) Ended() bool { return g.ended || g.payload == g.max || g.frames == MaxFrames }

// Header writes the header of the GSO packet of at least two frames to dst, which has room for splitter.MaxHeader
// bytes, and its Meta to m. It returns the part of dst that it wrote. The TCP checksum is partial.
func (g *Merge) Header(dst []byte, m *splitter.Meta) []byte {
	dst = dst[:copy(dst, g.hdr)]
	*m = *g.meta
	h := &m.Headers
	h.FrameLen = uint32(h.HdrLen) + g.payload
	if g.psh {
		h.TCPFlags |= splitter.PSH
		dst[h.L4Off+tcpFlags] = h.TCPFlags
	}
	n := uint16(h.FrameLen - uint32(h.L3Off))
	if ip := dst[h.L3Off:]; h.IPv6 {
		binary.BigEndian.PutUint16(ip[ipv6Payload:], uint16(h.FrameLen-uint32(h.L3Off)-ipv6Len))
		m.GSOType = splitter.GSOTCPv6
	} else {
		binary.BigEndian.PutUint16(ip[ipv4Total:], n)
		splitter.FixIPv4(h, dst)
		m.GSOType = splitter.GSOTCPv4
	}
	m.GSOSize, m.FixedID, m.ECN, m.AccECN = uint16(g.mss), g.fixedID, false, h.TCPFlags&splitter.CWR != 0
	m.Csum = splitter.CsumPartial
	m.CsumStart, m.CsumOffset, _ = splitter.CsumPlace(h)
	splitter.FixPartial(h, dst, g.payload)
	return dst
}
