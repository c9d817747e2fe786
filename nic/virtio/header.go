package virtio

import (
	"encoding/binary"
	"fmt"

	"vnic.dev/vnic/nic"
	"vnic.dev/vnic/splitter"
)

var le = binary.LittleEndian

// netHdrLen is the length of virtio_net_hdr with num_buffers (VIRTIO_F_VERSION_1 or MRG_RXBUF; virtio 1.3, 5.1.6).
const netHdrLen = 12

// Flags and types of virtio_net_hdr (virtio 1.3, 5.1.6).
const (
	hdrNeedsCsum = 1 // VIRTIO_NET_HDR_F_NEEDS_CSUM
	hdrDataValid = 2 // VIRTIO_NET_HDR_F_DATA_VALID

	hdrGSONone  = 0    // VIRTIO_NET_HDR_GSO_NONE
	hdrGSOTCPv4 = 1    // VIRTIO_NET_HDR_GSO_TCPV4
	hdrGSOTCPv6 = 4    // VIRTIO_NET_HDR_GSO_TCPV6
	hdrGSOUDPL4 = 5    // VIRTIO_NET_HDR_GSO_UDP_L4
	hdrGSOECN   = 0x80 // VIRTIO_NET_HDR_GSO_ECN
)

// netHdr is struct virtio_net_hdr_v1.
type netHdr struct {
	flags      uint8  // offset 0
	gsoType    uint8  // 1
	hdrLen     uint16 // 2: a hint, never trusted
	gsoSize    uint16 // 4
	csumStart  uint16 // 6
	csumOffset uint16 // 8
	numBuffers uint16 // 10
}

func (h *netHdr) decode(b *[netHdrLen]byte) {
	h.flags, h.gsoType = b[0], b[1]
	h.hdrLen = le.Uint16(b[2:])
	h.gsoSize = le.Uint16(b[4:])
	h.csumStart = le.Uint16(b[6:])
	h.csumOffset = le.Uint16(b[8:])
	h.numBuffers = le.Uint16(b[10:])
}

func (h *netHdr) encode(b *[netHdrLen]byte) {
	b[0], b[1] = h.flags, h.gsoType
	le.PutUint16(b[2:], h.hdrLen)
	le.PutUint16(b[4:], h.gsoSize)
	le.PutUint16(b[6:], h.csumStart)
	le.PutUint16(b[8:], h.csumOffset)
	le.PutUint16(b[10:], h.numBuffers)
}

// meta reads what a driver said of a frame that it sends. The features decide what it may say.
// Where its checksum may lie the wire decides (splitter.Meta.CsumAllowed).
func (h *netHdr) meta(m *splitter.Meta, features uint64) error {
	m.GSOType, m.GSOSize, m.ECN = splitter.GSONone, 0, false
	m.Csum, m.CsumStart, m.CsumOffset = splitter.CsumNone, 0, 0
	m.HashValid = false
	if h.flags&hdrNeedsCsum != 0 {
		if features&fCsum == 0 {
			return fmt.Errorf("%w: virtio_net_hdr asks for a checksum without VIRTIO_NET_F_CSUM", nic.ErrBadFrame)
		}
		m.Csum, m.CsumStart, m.CsumOffset = splitter.CsumPartial, h.csumStart, h.csumOffset
	}
	need := uint64(0)
	switch h.gsoType &^ hdrGSOECN {
	case hdrGSONone:
		return nil
	case hdrGSOTCPv4:
		m.GSOType, need = splitter.GSOTCPv4, fHostTSO4
	case hdrGSOTCPv6:
		m.GSOType, need = splitter.GSOTCPv6, fHostTSO6
	default:
		return fmt.Errorf("%w: virtio_net_hdr.gso_type %#x was not negotiated", nic.ErrBadFrame, h.gsoType)
	}
	m.ECN = h.gsoType&hdrGSOECN != 0
	if m.ECN {
		need |= fHostECN
	}
	switch {
	case features&need != need:
		return fmt.Errorf("%w: virtio_net_hdr.gso_type %#x was not negotiated", nic.ErrBadFrame, h.gsoType)
	case h.gsoSize == 0:
		return fmt.Errorf("%w: virtio_net_hdr.gso_size is 0", nic.ErrBadFrame)
	case m.Csum != splitter.CsumPartial:
		return fmt.Errorf("%w: super-packet without VIRTIO_NET_HDR_F_NEEDS_CSUM", nic.ErrBadFrame)
	}
	m.GSOSize = h.gsoSize
	return nil
}

// describe says of a frame what its receiver may know; csum: it has VIRTIO_NET_F_GUEST_CSUM, without which flags are 0.
func (h *netHdr) describe(m *splitter.Meta, hlen uint32, csum bool) {
	h.flags, h.gsoType, h.hdrLen, h.gsoSize = 0, hdrGSONone, uint16(hlen), 0
	h.csumStart, h.csumOffset, h.numBuffers = 0, 0, 1
	switch {
	case !csum:
	case m.Csum == splitter.CsumPartial:
		h.flags, h.csumStart, h.csumOffset = hdrNeedsCsum, m.CsumStart, m.CsumOffset
	case m.Csum == splitter.CsumGood:
		h.flags = hdrDataValid
	}
	switch m.GSOType {
	case splitter.GSOTCPv4:
		h.gsoType = hdrGSOTCPv4
	case splitter.GSOTCPv6:
		h.gsoType = hdrGSOTCPv6
	case splitter.GSOUDPL4:
		h.gsoType = hdrGSOUDPL4
	default:
		return
	}
	h.gsoSize = m.GSOSize
	if m.ECN {
		h.gsoType |= hdrGSOECN
	}
}
