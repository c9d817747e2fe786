package splitter

// GSOType is the kind of a super-packet, as virtio_net_hdr.gso_type without the ECN bit, but with other numbers.
type GSOType uint8

// GSO types.
const (
	GSONone  GSOType = iota
	GSOTCPv4         // VIRTIO_NET_HDR_GSO_TCPV4
	GSOTCPv6         // VIRTIO_NET_HDR_GSO_TCPV6
	GSOUDPL4         // VIRTIO_NET_HDR_GSO_UDP_L4
)

var gsoNames = [...]string{GSONone: "none", GSOTCPv4: "tcpv4", GSOTCPv6: "tcpv6", GSOUDPL4: "udp-l4"}

// String returns the type's name; "unknown" for an unknown type.
func (t GSOType) String() string {
	if int(t) < len(gsoNames) {
		return gsoNames[t]
	}
	return "unknown"
}

// Csum is the state of a frame's layer 4 checksum.
type Csum uint8

// States of a checksum.
const (
	CsumNone    Csum = iota // unknown, or there is no checksum
	CsumPartial             // to be completed: in TCP and UDP the field holds the pseudo-header's sum
	CsumGood                // verified, computed, or declared right by the sender
	CsumBad                 // verified, and wrong
)

// Meta describes a frame on its way from one port of vnic's switch to another.
type Meta struct {
	Headers    Headers
	GSOType    GSOType
	ECN        bool   // VIRTIO_NET_HDR_GSO_ECN
	GSOSize    uint16 // payload bytes per segment (MSS) of a super-packet
	FixedID    bool   // all segments of an IPv4 super-packet have its identification (RFC 6864)
	Csum       Csum
	CsumStart  uint16 // of CsumPartial: offset in the frame where summing starts
	CsumOffset uint16 // of CsumPartial: offset of the field from CsumStart
	HashValid  bool
	AccECN     bool   // a super-packet's CWR is set on all segments, not only the first (Linux: SKB_GSO_TCP_ACCECN)
	Hash       uint32 // of RSS, if HashValid
}
