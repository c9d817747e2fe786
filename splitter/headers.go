package splitter

import "errors"

// Lengths that callers size their buffers by.
const (
	EthLen    = 14  // link header without tags
	MaxHeader = 512 // the longest headers that Parse follows; a frame whose headers are longer is Malformed
)

// EtherTypes that Parse knows (IEEE 802 numbers).
const (
	EtherTypeIPv4 = 0x0800
	EtherTypeARP  = 0x0806
	EtherTypeVLAN = 0x8100 // 802.1Q
	EtherTypeIPv6 = 0x86dd
	EtherTypeQinQ = 0x88a8 // 802.1ad
)

// IP protocol numbers (IANA).
const (
	ProtoTCP  = 6
	ProtoUDP  = 17
	ProtoESP  = 50
	ProtoAH   = 51
	ProtoSCTP = 132
)

// TCP flags, as they lie in byte 13 of the header (RFC 9293, 3.1; RFC 3168 for ECE and CWR).
const (
	FIN = 0x01
	SYN = 0x02
	RST = 0x04
	PSH = 0x08
	ACK = 0x10
	URG = 0x20
	ECE = 0x40
	CWR = 0x80
)

// ErrShort says that the headers go on beyond the bytes given to Parse, while the frame itself is longer.
var ErrShort = errors.New("headers go on beyond the bytes given")

// Class is what Parse made of a frame.
type Class uint8

// Classes of frames.
const (
	NotIP     Class = iota // ARP, LLDP and the like: only the link header is known
	Fragment               // of an IP datagram, the first one too: no ports, never matches a rule with ports
	OtherIP                // IP with a protocol that is neither TCP nor UDP, or a source route that is not at its end
	TCP                    // whole headers, options included
	UDP                    // whole headers
	Malformed              // headers that contradict themselves, the frame's length or MaxHeader
)

var classNames = [...]string{NotIP: "not-ip", Fragment: "fragment", OtherIP: "other-ip", TCP: "tcp", UDP: "udp"}

// String gives the class's name for counters and logs.
func (c Class) String() string {
	if int(c) < len(classNames) {
		return classNames[c]
	}
	return "malformed"
}

// Flow is the 5-tuple. It is comparable, so it is a map key. IPv4 addresses lie in the first 4 bytes, the rest is 0.
// Of ESP and AH the ports are the upper and the lower half of the SPI. Frames without ports (Fragment, OtherIP that is
// neither SCTP, ESP nor AH) have both ports 0; a frame that is not IP has the zero Flow.
type Flow struct {
	Src, Dst         [16]byte
	SrcPort, DstPort uint16
	Proto            uint8
	IPv6             bool
}

// HasSPI says whether it is a flow of ESP or AH, whose ports are an SPI's halves.
func (f *Flow) HasSPI() bool { return f.Proto == ProtoESP || f.Proto == ProtoAH }

// SPI is the security parameters index of a flow of ESP or AH; 0: it has none, as a fragment.
func (f *Flow) SPI() uint32 { return uint32(f.SrcPort)<<16 | uint32(f.DstPort) }

// Headers is what Parse found in a frame. Offsets count from the start of the frame.
type Headers struct {
	Class     Class
	Proto     uint8 // of the upper layer, behind IPv6 extension headers
	TCPFlags  uint8
	VLANs     uint8  // tags before the EtherType
	IPv6      bool   // of an IP frame
	AH        bool   // IPv6 has an authentication header, behind which Parse has looked: its SPI is AHSPI
	EtherType uint16 // behind the tags
	VLAN      uint16 // TCI of the outermost tag, if VLANs > 0; see Tagged
	L3Off     uint16 // end of the link header with its tags (also for NotIP)
	L4Off     uint16 // end of the IP headers; 0 for NotIP and Malformed
	// HdrLen is the length of all headers: for TCP with its options, for UDP with the UDP header. For OtherIP and
	// Fragment it is the end of the IP headers (of a fragment in IPv6: of the fragment header), for NotIP of the link
	// header, for Malformed 0. Never more than FrameLen or than the bytes that Parse was given.
	HdrLen   uint16
	Seq, Ack uint32 // of TCP
	AHSPI    uint32 // of the first authentication header, if AH
	// FrameLen is the frame's length by its IP header: what lies behind it is padding of a runt (see Carried), or a
	// trailer, which no length or checksum of IP, TCP or UDP covers. For NotIP and Malformed it is the length that Parse
	// was given.
	FrameLen uint32
	Flow     Flow
}

// minFrame is the shortest frame on a wire, without its checksum (IEEE 802.3, 4A.4.2); a tag makes it longer by tagLen
// if its sender likes (802.1Q, annex G.2.3).
const (
	minFrame = 60
	tagLen   = 4
)

// Carried says how many of a frame's n bytes a NIC and a switch carry on: all of them, but for what pads an IP packet
// that is too short for a frame.
func (h *Headers) Carried(n uint32) uint32 {
	if h.FrameLen < n && h.FrameLen >= EthLen && n <= minFrame+tagLen*uint32(h.VLANs) {
		return h.FrameLen
	}
	return n
}

// PayloadLen is how many bytes of a frame of TCP or UDP lie behind its headers by its IP header: what their checksums
// cover, without a trailer.
func (h *Headers) PayloadLen() uint32 { return h.FrameLen - uint32(h.HdrLen) }

// SplitLen says how many bytes of the frame belong in a header buffer of limit bytes: of TCP the
// headers, of all else the whole frame, as devmem wants it (no payload for SYN, ACK, ARP, ICMP,
// UDP). ok is false if that does not fit or the frame is Malformed: then it cannot be split and is
// the device model's to place.
func (h *Headers) SplitLen(limit uint32) (n uint32, ok bool) {
	n = h.FrameLen
	if h.Class == TCP {
		n = uint32(h.HdrLen)
	}
	return n, h.Class != Malformed && n <= limit
}

// Tagged says whether a frame is of a VLAN: a tag alone whose VLAN is 0 gives a priority only, and the frame counts as
// one without (802.1Q, 9.6).
func (h *Headers) Tagged() bool { return h.VLANs > 1 || h.VLANs == 1 && h.VLAN&0xfff != 0 }
