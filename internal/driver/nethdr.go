package driver

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/virtionet"
	"vnic.dev/vnic/splitter"
)

// netHdrLen is the length of struct virtio_net_hdr with num_buffers and no later fields, in bytes (virtio 1.3,
// 5.1.6).
const netHdrLen = 12

// netHdr is struct virtio_net_hdr (virtio 1.3, 5.1.6).
type netHdr struct {
	flags      uint8  // offset 0
	gsoType    uint8  // 1
	hdrLen     uint16 // 2
	gsoSize    uint16 // 4
	csumStart  uint16 // 6
	csumOffset uint16 // 8
	numBuffers uint16 // 10
}

var (
	le = binary.LittleEndian
	be = binary.BigEndian
)

// decode reads each byte once: the device may change the header at any time.
func (h *netHdr) decode(b *[netHdrLen]byte) {
	lo, hi := le.Uint64(b[0:]), le.Uint32(b[8:])
	*h = netHdr{
		flags: uint8(lo), gsoType: uint8(lo >> 8), hdrLen: uint16(lo >> 16), gsoSize: uint16(lo >> 32),
		csumStart:  uint16(lo >> 48),
		csumOffset: uint16(hi), numBuffers: uint16(hi >> 16),
	}
}

func (h *netHdr) encode(b *[netHdrLen]byte) {
	b[0], b[1] = h.flags, h.gsoType
	le.PutUint16(b[2:], h.hdrLen)
	le.PutUint16(b[4:], h.gsoSize)
	le.PutUint16(b[6:], h.csumStart)
	le.PutUint16(b[8:], h.csumOffset)
	le.PutUint16(b[10:], h.numBuffers)
}

func (h *netHdr) offload(o *Offloads, f *RxFrame) error {
	// virtio 1.3 (5.1.6.4.1) allows DATA_VALID only with GUEST_CSUM; Linux accepts it without, and passt sets it so on
	// frames whose checksum it has not computed.
	f.CsumGood = o.RxCsum && h.flags&virtionet.HdrNeedsCsum != 0 || h.flags&virtionet.HdrDataValid != 0
	f.GSOType, f.GSOSize = splitter.GSONone, 0
	switch t := h.gsoType &^ virtionet.HdrGSOECN; {
	case t == virtionet.HdrGSONone:
		return nil
	case t == virtionet.HdrGSOTCPv4 && o.RxTSO4:
		f.GSOType = splitter.GSOTCPv4
	case t == virtionet.HdrGSOTCPv6 && o.RxTSO6:
		f.GSOType = splitter.GSOTCPv6
	default:
		return fmt.Errorf("%w: receive queue %d: gso_type %#x was not negotiated", ErrBroken, f.Queue, h.gsoType)
	}
	f.GSOSize = h.gsoSize
	return nil
}

func (f *TxFrame) sum() uint16 {
	head := f.Header[f.CsumStart:]
	payload := dma.Fold(dma.Checksum(f.Linear, 0))
	c := splitter.Add(splitter.Sum(head, 0), splitter.SumAt(payload, uint32(len(head))))
	if c != 0xffff {
		c = ^c
	}
	return c // never 0, which in UDP means that there is no checksum
}

func netHdrOf(o *Offloads, f *TxFrame) (netHdr, error) {
	h := netHdr{hdrLen: uint16(len(f.Header))}
	switch {
	case !f.NeedsCsum:
	case !o.TxCsum && len(f.Device) > 0:
		return h, fmt.Errorf("%w: CSUM, for NeedsCsum of payload that is not in reach", ErrFeature)
	case !o.TxCsum: // copyIn computes the checksum, and writes it into the header's copy, in the first chunk
		if pos := int(f.CsumStart) + int(f.CsumOffset); pos+2 > min(len(f.Header), chunkLen-netHdrLen) {
			return h, fmt.Errorf("frame with its checksum at %d, %d bytes of header: %w", pos, len(f.Header), unix.EINVAL)
		}
	default:
		h.flags, h.csumStart, h.csumOffset = virtionet.HdrNeedsCsum, f.CsumStart, f.CsumOffset
	}
	switch f.GSOType {
	case splitter.GSONone:
		return h, nil
	case splitter.GSOTCPv4:
		if !o.TxTSO4 {
			return h, fmt.Errorf("%w: HOST_TSO4", ErrFeature)
		}
		h.gsoType = virtionet.HdrGSOTCPv4
	case splitter.GSOTCPv6:
		if !o.TxTSO6 {
			return h, fmt.Errorf("%w: HOST_TSO6", ErrFeature)
		}
		h.gsoType = virtionet.HdrGSOTCPv6
	default:
		return h, fmt.Errorf("%w: segmentation of %v", ErrFeature, f.GSOType)
	}
	if f.GSOSize == 0 || !f.NeedsCsum { // 5.1.6.2.1: gso_type requires NEEDS_CSUM and gso_size
		return h, fmt.Errorf("frame of GSO type %v: size %d, NeedsCsum %v: both are needed", f.GSOType, f.GSOSize,
			f.NeedsCsum)
	}
	h.gsoSize = f.GSOSize
	return h, nil
}
