package splitter

// GSOType says what kind of super-packet a frame is (virtio_net_hdr.gso_type, without the ECN bit).
type GSOType uint8

// GSO types.
const (
	GSONone  GSOType = iota
	GSOTCPv4         // VIRTIO_NET_HDR_GSO_TCPV4
	GSOTCPv6         // VIRTIO_NET_HDR_GSO_TCPV6
	GSOUDPL4         // VIRTIO_NET_HDR_GSO_UDP_L4
)

var gsoNames = [...]string{GSONone: "none", GSOTCPv4: "tcpv4", GSOTCPv6: "tcpv6", GSOUDPL4: "udp-l4"}

// String gives the type's name for counters and logs.
func (t GSOType) String() string {
	if int(t) < len(gsoNames) {
		return gsoNames[t]
	}
	return "unknown"
}

// Csum is what is known of a frame's layer 4 checksum.
type Csum uint8

// States of a checksum.
const (
	CsumNone    Csum = iota // nothing is known: a receiver that must know verifies it
	CsumPartial             // the field holds the pseudo-header's sum; a receiver that needs it complete adds the rest
	CsumGood                // verified or computed here, or vouched for by a port of ours
	CsumBad                 // verified, and wrong
)

// Meta goes along with a frame.
type Meta struct {
	Headers    Headers
	GSOType    GSOType
	ECN        bool   // VIRTIO_NET_HDR_GSO_ECN: a super-packet with CWR set
	GSOSize    uint16 // payload bytes per segment (MSS) of a super-packet
	FixedID    bool   // the segments of an IPv4 super-packet all have its identification (RFC 6864, atomic datagrams)
	Csum       Csum
	CsumStart  uint16 // of CsumPartial: where summing starts, in the frame
	CsumOffset uint16 // of CsumPartial: where the field is, from CsumStart
	HashValid  bool
	AccECN     bool   // CWR of a super-packet is on all segments, not on the first alone (Linux: SKB_GSO_TCP_ACCECN)
	Hash       uint32 // RSS hash of the flow
}
