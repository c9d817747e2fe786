package nvmetcp

import (
	"encoding/binary"
	"fmt"

	"vnic.dev/vnic/block"
)

var le = binary.LittleEndian // all fields of PDUs are little endian (TCP 3.6)

// pduType is PDU-Type (TCP 3.6.2).
type pduType uint8

const (
	typeICReq       pduType = 0x00
	typeICResp      pduType = 0x01
	typeH2CTermReq  pduType = 0x02
	typeC2HTermReq  pduType = 0x03
	typeCapsuleCmd  pduType = 0x04
	typeCapsuleResp pduType = 0x05
	typeH2CData     pduType = 0x06
	typeC2HData     pduType = 0x07
	typeR2T         pduType = 0x09
)

var pduNames = map[pduType]string{typeICReq: "ICReq", typeICResp: "ICResp", typeH2CTermReq: "H2CTermReq",
	typeC2HTermReq: "C2HTermReq", typeCapsuleCmd: "CapsuleCmd", typeCapsuleResp: "CapsuleResp",
	typeH2CData: "H2CData", typeC2HData: "C2HData", typeR2T: "R2T"}

func (t pduType) String() string {
	if s := pduNames[t]; s != "" {
		return s
	}
	return fmt.Sprintf("PDU of type %#x", uint8(t))
}

// FLAGS of the common header (TCP 3.6.2).
const (
	flagHDGST   = 1 << 0
	flagDDGST   = 1 << 1
	flagLast    = 1 << 2 // last data of a command (C2HData), or of an R2T (H2CData)
	flagSuccess = 1 << 3 // no CapsuleResp follows, as the command has succeeded (C2HData)
)

// Lengths in bytes.
const (
	commonLen  = 8   // CH, the common header
	headLen    = 24  // HLEN of C2HData, H2CData, R2T, CapsuleResp and the TermReqs
	commandLen = 72  // CapsuleCmd: CH and an SQE
	icLen      = 128 // HLEN and PLEN of ICReq and ICResp
	maxTermLen = 152 // most PLEN of a TermReq (TCP 3.6.2.4, 3.6.2.5)
	wordLen    = 4   // a C2HData's PDO (as HPDA is 0, TCP 3.6.2.2) and MAXH2CDATA are multiples of it
)

type common struct {
	Type  pduType // at offset 0
	Flags uint8   // 1
	HLen  uint8   // 2
	PDO   uint8   // 3
	PLen  uint32  // 4: length of the whole PDU
}

func (h *common) decode(b *[commonLen]byte) {
	*h = common{Type: pduType(b[0]), Flags: b[1], HLen: b[2], PDO: b[3], PLen: le.Uint32(b[4:])}
}

func (h *common) encode(b *[commonLen]byte) {
	b[0], b[1], b[2], b[3] = byte(h.Type), h.Flags, h.HLen, h.PDO
	le.PutUint32(b[4:], h.PLen)
}

// encode and decode are slow: they are for PDUs that a connection has at most once.
func encode(b []byte, pdu any) { _, _ = binary.Encode(b, le, pdu) }

func decode(b []byte, pdu any) { _, _ = binary.Decode(b, le, pdu) }

// icReq is ICReq (TCP 3.6.2.2); PFV, HPDA and DGST are 0.
type icReq struct {
	common
	_      [4]byte
	MaxR2T uint32 // 12: the most outstanding R2Ts of a command, less one
	_      [112]byte
}

func (p *icReq) encode(b *[icLen]byte) { encode(b[:], p) }

// icResp is ICResp (TCP 3.6.2.3).
type icResp struct {
	common
	PFV    uint16 // 8: version of the PDUs' format
	CPDA   uint8  // 10: alignment of the host's data, in words of 4 bytes, less one
	Digest uint8  // 11: DGST, the digests in use
	MaxH2C uint32 // 12: the most bytes of data in an H2CData
	_      [112]byte
}

func (p *icResp) decode(b *[icLen]byte) { decode(b[:], p) }

func (p *icResp) encode(b *[icLen]byte) { encode(b[:], p) }

// transfer is the header of a C2HData (TCP 3.6.2.10), an H2CData (3.6.2.9) or an R2T (3.6.2.11).
type transfer struct {
	common
	CID uint16 // 8: CCCID
	Tag uint16 // 10: TTAG; in C2HData reserved
	Off uint32 // 12: DATAO, R2TO: offset in the command's data
	Len uint32 // 16: DATAL, R2TL
}

func (p *transfer) decode(b *[headLen]byte) {
	p.common.decode((*[commonLen]byte)(b[:]))
	p.CID, p.Tag, p.Off, p.Len = le.Uint16(b[8:]), le.Uint16(b[10:]), le.Uint32(b[12:]), le.Uint32(b[16:])
}

func (p *transfer) encode(b *[headLen]byte) {
	p.common.encode((*[commonLen]byte)(b[:]))
	le.PutUint16(b[8:], p.CID)
	le.PutUint16(b[10:], p.Tag)
	le.PutUint32(b[12:], p.Off)
	le.PutUint32(b[16:], p.Len)
	le.PutUint32(b[20:], 0)
}

// response is CapsuleResp (TCP 3.6.2.8): CH and a CQE (Fabrics 2.2, Base 4.6).
type response struct {
	common
	Result uint64 // 8: of the command
	SQHead uint16 // 16
	SQID   uint16 // 18: reserved here
	CID    uint16 // 20
	Status status // 22: the upper 15 bits
}

func (p *response) decode(b *[headLen]byte) {
	p.common.decode((*[commonLen]byte)(b[:]))
	p.Result, p.SQHead, p.SQID = le.Uint64(b[8:]), le.Uint16(b[16:]), le.Uint16(b[18:])
	p.CID, p.Status = le.Uint16(b[20:]), status(le.Uint16(b[22:])>>1)
}

func (p *response) encode(b *[headLen]byte) {
	p.common.encode((*[commonLen]byte)(b[:]))
	le.PutUint64(b[8:], p.Result)
	le.PutUint16(b[16:], p.SQHead)
	le.PutUint16(b[18:], p.SQID)
	le.PutUint16(b[20:], p.CID)
	le.PutUint16(b[22:], uint16(p.Status)<<1)
}

// termReq is the header of a C2HTermReq (TCP 3.6.2.5).
type termReq struct {
	common
	FES uint16 // 8: Fatal Error Status
	FEI uint32 // 10: Fatal Error Information
	_   [10]byte
}

func (p *termReq) decode(b *[headLen]byte) { decode(b[:], p) }

func (p *termReq) encode(b *[headLen]byte) { encode(b[:], p) }

func violation(format string, args ...any) error {
	return fmt.Errorf("%w: %s", block.ErrProtocol, fmt.Sprintf(format, args...))
}

// check returns block.ErrProtocol for headers with a type, lengths or digest flags that a target must not send after
// ICResp (it ignores a C2HTermReq's flags). A C2HData that it accepts has a PLen above its PDO.
func (h *common) check() error {
	switch h.Type {
	case typeCapsuleResp, typeR2T, typeC2HData, typeC2HTermReq:
	default:
		return violation("%v, which a target does not send here", h.Type)
	}
	if h.HLen != headLen {
		return violation("%v: HLEN %d, not %d", h.Type, h.HLen, headLen)
	}
	switch h.Type {
	case typeC2HTermReq:
		if h.PLen < headLen || h.PLen > maxTermLen {
			return violation("%v: PLEN %d, not %d to %d", h.Type, h.PLen, headLen, maxTermLen)
		}
		return nil
	case typeC2HData:
		if h.PDO < headLen || h.PDO%wordLen != 0 {
			return violation("%v: PDO %d, not a multiple of %d from %d on", h.Type, h.PDO, wordLen, headLen)
		}
		if h.PLen <= uint32(h.PDO) {
			return violation("%v: PLEN %d with data from %d on: there is none", h.Type, h.PLen, h.PDO)
		}
	default:
		if h.PLen != headLen {
			return violation("%v: PLEN %d, not %d", h.Type, h.PLen, headLen)
		}
	}
	if h.Flags&(flagHDGST|flagDDGST) != 0 {
		return violation("%v: flags %#x: digests, which were not agreed", h.Type, h.Flags)
	}
	return nil
}
