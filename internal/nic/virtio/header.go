package virtio

import (
	"encoding/binary"
	"fmt"

	"vnic.dev/vnic/internal/nic"
	"vnic.dev/vnic/internal/virtionet"
	"vnic.dev/vnic/splitter"
	"vnic.dev/vnic/vhostuser"
)

var le = binary.LittleEndian

// maxNetHdr is the length of virtio_net_hdr with num_buffers (virtio 1.3, 5.1.6), legacyNetHdr without
// (5.1.6.1).
const (
	maxNetHdr    = 12
	legacyNetHdr = 10
)

// netHdrLen returns the length of virtio_net_hdr under these features (virtio 1.3, 5.1.6.1).
func netHdrLen(features uint64) uint32 {
	if features&(vhostuser.FeatureVersion1|virtionet.FMrgRxBuf) == 0 {
		return legacyNetHdr
	}
	return maxNetHdr
}

// netHdr is struct virtio_net_hdr_v1 in memory: flags u8, gso_type u8, hdr_len u16 (a hint, never trusted),
// gso_size u16, csum_start u16, csum_offset u16, num_buffers u16.
type netHdr [maxNetHdr]byte

func (h *netHdr) flags() uint8       { return h[0] }
func (h *netHdr) gsoType() uint8     { return h[1] }
func (h *netHdr) gsoSize() uint16    { return le.Uint16(h[4:]) }
func (h *netHdr) csumStart() uint16  { return le.Uint16(h[6:]) }
func (h *netHdr) csumOffset() uint16 { return le.Uint16(h[8:]) }

// meta sets the fields of m for GSO and the checksum from the virtio_net_hdr of a frame that a driver sends. It returns
// nic.ErrBadFrame for a GSO packet or a checksum request that the features or the other fields do not allow, but does
// not check csum_start and csum_offset.
func (h *netHdr) meta(m *splitter.Meta, features uint64) error {
	m.GSOType, m.GSOSize, m.ECN = splitter.GSONone, 0, false
	m.Csum, m.CsumStart, m.CsumOffset = splitter.CsumNone, 0, 0
	m.HashValid = false
	if h.flags()&virtionet.HdrNeedsCsum != 0 {
		if features&virtionet.FCsum == 0 {
			return fmt.Errorf("%w: virtio_net_hdr asks for a checksum without VIRTIO_NET_F_CSUM", nic.ErrBadFrame)
		}
		m.Csum, m.CsumStart, m.CsumOffset = splitter.CsumPartial, h.csumStart(), h.csumOffset()
	}
	need := uint64(0)
	switch h.gsoType() &^ virtionet.HdrGSOECN {
	case virtionet.HdrGSONone:
		return nil
	case virtionet.HdrGSOTCPv4:
		m.GSOType, need = splitter.GSOTCPv4, virtionet.FHostTSO4
	case virtionet.HdrGSOTCPv6:
		m.GSOType, need = splitter.GSOTCPv6, virtionet.FHostTSO6
	default:
		return fmt.Errorf("%w: virtio_net_hdr.gso_type %#x was not negotiated", nic.ErrBadFrame, h.gsoType())
	}
	m.ECN = h.gsoType()&virtionet.HdrGSOECN != 0
	if m.ECN {
		need |= virtionet.FHostECN
	}
	switch {
	case features&need != need:
		return fmt.Errorf("%w: virtio_net_hdr.gso_type %#x was not negotiated", nic.ErrBadFrame, h.gsoType())
	case h.gsoSize() == 0:
		return fmt.Errorf("%w: virtio_net_hdr.gso_size is 0", nic.ErrBadFrame)
	case m.Csum != splitter.CsumPartial:
		return fmt.Errorf("%w: super-packet without VIRTIO_NET_HDR_F_NEEDS_CSUM", nic.ErrBadFrame)
	}
	m.GSOSize = h.gsoSize()
	return nil
}

// describe fills in virtio_net_hdr for a frame's receiver; hlen becomes hdr_len, and buffers num_buffers. csum: the
// receiver negotiated VIRTIO_NET_F_GUEST_CSUM.
func (h *netHdr) describe(m *splitter.Meta, hlen uint32, csum bool, buffers int) {
	lo := uint64(uint16(hlen)) << 16    // flags, gso_type, hdr_len, gso_size, csum_start
	hi := uint32(uint16(buffers)) << 16 // csum_offset, num_buffers
	switch {
	case !csum:
	case m.Csum == splitter.CsumPartial:
		lo |= virtionet.HdrNeedsCsum | uint64(m.CsumStart)<<48
		hi |= uint32(m.CsumOffset)
	case m.Csum == splitter.CsumGood:
		lo |= virtionet.HdrDataValid
	}
	gso := uint64(virtionet.HdrGSONone)
	switch m.GSOType {
	case splitter.GSOTCPv4:
		gso = virtionet.HdrGSOTCPv4
	case splitter.GSOTCPv6:
		gso = virtionet.HdrGSOTCPv6
	case splitter.GSOUDPL4:
		gso = virtionet.HdrGSOUDPL4
	}
	if gso != virtionet.HdrGSONone {
		if m.ECN {
			gso |= virtionet.HdrGSOECN
		}
		lo |= gso<<8 | uint64(m.GSOSize)<<32
	}
	le.PutUint64(h[:], lo)
	le.PutUint32(h[8:], hi)
}
