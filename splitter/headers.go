package splitter

import "errors"

// Lengths of headers.
const (
	EthLen    = 14  // without tags
	MaxHeader = 512 // the most bytes of headers that Parse reads
)

// EtherTypes (IEEE 802 numbers).
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

// ErrShort means that the headers continue beyond the bytes given to Parse, and that the frame is longer than
// these bytes.
var ErrShort = errors.New("headers go on beyond the bytes given")

// Class is the kind of a frame, as Parse found it.
type Class uint8

// Classes of frames.
const (
	NotIP    Class = iota // ARP, LLDP, more than two tags, and the like: only the link header is parsed
	Fragment              // fragment of an IP datagram, also the first, also an atomic one of IPv6: its ports are 0
	OtherIP               // IP of a protocol other than TCP and UDP, or with an IPv6 source route that is not at its end
	TCP
	UDP
	Malformed // headers that contradict themselves, or exceed the frame or MaxHeader; also with ErrShort
)

var classNames = [...]string{NotIP: "not-ip", Fragment: "fragment", OtherIP: "other-ip", TCP: "tcp", UDP: "udp"}

// String returns the class's name; "malformed" also for an unknown class.
func (c Class) String() string {
	if int(c) < len(classNames) {
		return classNames[c]
	}
	return "malformed"
}

// Flow is the 5-tuple. An IPv4 address is in the first 4 bytes, the rest is 0. If Proto is ESP or AH, the ports are
// the upper and the lower half of the SPI, or 0 if the frame has none. Other frames without ports have both ports 0; a
// frame that is not IP or is Malformed has the zero Flow.
type Flow struct {
	Src, Dst         [16]byte
	SrcPort, DstPort uint16
	Proto            uint8
	IPv6             bool
}

// HasSPI reports whether the flow is ESP or AH.
func (f *Flow) HasSPI() bool { return f.Proto == ProtoESP || f.Proto == ProtoAH }

// SPI returns the security parameters index of an ESP or AH flow; 0 if the frame has none, such as a fragment.
func (f *Flow) SPI() uint32 { return uint32(f.SrcPort)<<16 | uint32(f.DstPort) }

// Headers is the result of Parse. Offsets count from the start of the frame.
type Headers struct {
	Class     Class
	Proto     uint8 // IP protocol, after the IPv6 extension headers; 43 if Parse stops at a source route (OtherIP)
	TCPFlags  uint8
	VLANs     uint8 // number of tags that Parse read, at most 2
	IPv6      bool
	AH        bool   // the IPv6 frame has an authentication header before its upper layer: see AHSPI
	EtherType uint16 // after the tags that VLANs counts
	VLAN      uint16 // TCI of the outermost tag, if VLANs > 0; see Tagged
	L3Off     uint16 // end of the link header with its tags (also for NotIP)
	L4Off     uint16 // end of the IP headers; 0 for NotIP and Malformed
	// HdrLen is the length of all headers: for TCP with its options, for UDP with the UDP header. For OtherIP
	// and Fragment it is the end of the IP headers, for NotIP the end of the link header, for Malformed 0.
	HdrLen   uint16
	Seq, Ack uint32 // of TCP
	AHSPI    uint32 // SPI of the first authentication header, if AH
	// FrameLen is the frame's length by its IP header: bytes after it are padding or a trailer. For NotIP and
	// Malformed it is the length that was given to Parse.
	FrameLen uint32
	Flow     Flow
}

// minFrame is the shortest frame on a wire, without its frame check sequence (IEEE 802.3, 4A.4.2). A sender
// may let each tag lengthen it by tagLen (802.1Q, annex G.2.3).
const (
	minFrame = 60
	tagLen   = 4
)

// Carried returns how many of a frame's n bytes are forwarded: all, but without the bytes after FrameLen if n is at
// most minFrame plus tagLen for each tag.
func (h *Headers) Carried(n uint32) uint32 {
	if h.FrameLen < n && h.FrameLen >= EthLen && n <= minFrame+tagLen*uint32(h.VLANs) {
		return h.FrameLen
	}
	return n
}

// PayloadLen returns how many bytes of a TCP or UDP frame follow its headers, by its IP header.
func (h *Headers) PayloadLen() uint32 { return h.FrameLen - uint32(h.HdrLen) }

// SplitLen returns how many bytes of the frame belong in a header buffer of limit bytes: for TCP the headers,
// otherwise the whole frame. ok is false if these bytes do not fit or the frame is Malformed.
func (h *Headers) SplitLen(limit uint32) (n uint32, ok bool) {
	n = h.FrameLen
	if h.Class == TCP {
		n = uint32(h.HdrLen)
	}
	return n, h.Class != Malformed && n <= limit
}

// Tagged reports whether a frame belongs to a VLAN: a single tag with VLAN 0 sets only a priority (802.1Q,
// 9.6).
func (h *Headers) Tagged() bool { return h.VLANs > 1 || h.VLANs == 1 && h.VLAN&0xfff != 0 }
