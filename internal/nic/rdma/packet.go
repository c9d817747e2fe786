package rdma

import (
	"encoding/binary"
	"hash/crc32"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/splitter"
)

// Port is RoCEv2's UDP port (annex A17, A17.3.2.2).
const Port = 4791

// Operation codes of reliable connections (table 38).
const (
	opSendFirst     = 0x00
	opSendMiddle    = 0x01
	opSendLast      = 0x02
	opSendLastImm   = 0x03
	opSendOnly      = 0x04
	opSendOnlyImm   = 0x05
	opWriteFirst    = 0x06
	opWriteMiddle   = 0x07
	opWriteLast     = 0x08
	opWriteLastImm  = 0x09
	opWriteOnly     = 0x0a
	opWriteOnlyImm  = 0x0b
	opReadRequest   = 0x0c
	opReadRespFirst = 0x0d
	opReadRespMid   = 0x0e
	opReadRespLast  = 0x0f
	opReadRespOnly  = 0x10
	opAck           = 0x11
	numOps          = 0x12 // operation codes below are supported
	atomicAck       = 0x12
	allOps          = 0x20 // all operation codes of reliable connections are below: their upper three bits are 0
)

// shape describes the packets of an operation code.
type shape struct {
	known              bool
	unsupported        bool // requests that the NIC refuses; parse reads only their BTH
	response           bool
	send, write        bool
	first, last        bool // packet of a message
	reth, aeth, imm    bool
	whole, some, empty bool // payload: exactly the path MTU; up to the path MTU; none
}

var shapes = func() (list [allOps]shape) {
	copy(list[:], supported[:])
	for op := atomicAck + 1; op < allOps; op++ { // such as atomic operations, invalidation and reserved codes
		list[op] = shape{known: true, unsupported: true}
	}
	return list
}()

var supported = [numOps]shape{
	opSendFirst:     {known: true, send: true, first: true, whole: true},
	opSendMiddle:    {known: true, send: true, whole: true},
	opSendLast:      {known: true, send: true, last: true, some: true},
	opSendLastImm:   {known: true, send: true, last: true, some: true, imm: true},
	opSendOnly:      {known: true, send: true, first: true, last: true, some: true},
	opSendOnlyImm:   {known: true, send: true, first: true, last: true, some: true, imm: true},
	opWriteFirst:    {known: true, write: true, first: true, whole: true, reth: true},
	opWriteMiddle:   {known: true, write: true, whole: true},
	opWriteLast:     {known: true, write: true, last: true, some: true},
	opWriteLastImm:  {known: true, write: true, last: true, some: true, imm: true},
	opWriteOnly:     {known: true, write: true, first: true, last: true, some: true, reth: true},
	opWriteOnlyImm:  {known: true, write: true, first: true, last: true, some: true, reth: true, imm: true},
	opReadRequest:   {known: true, first: true, last: true, reth: true, empty: true},
	opReadRespFirst: {known: true, response: true, whole: true, aeth: true},
	opReadRespMid:   {known: true, response: true, whole: true},
	opReadRespLast:  {known: true, response: true, some: true, aeth: true},
	opReadRespOnly:  {known: true, response: true, some: true, aeth: true},
	opAck:           {known: true, response: true, aeth: true, empty: true},
}

// Lengths of headers, and of the ICRC, in bytes.
const (
	bthLen  = 12
	rethLen = 16
	aethLen = 4
	immLen  = 4
	icrcLen = 4
	maxExt  = bthLen + rethLen + immLen
)

// Syndromes of an AETH (tables 45, 46): bits 5 and 6 are the kind.
const (
	synAck      = 0x1f // an ACK with unlimited credits
	synRNR      = 0x20 // plus a timer code
	synNAK      = 0x60 // plus a code
	nakSequence = 0x60
	nakInvalid  = 0x61
	nakAccess   = 0x62
	nakOperate  = 0x63
	synKind     = 0x60
)

const psnMask = 1<<24 - 1

func after(psn, n uint32) uint32 { return (psn + n) & psnMask }

// distance returns how far the number psn is ahead of the number from; negative: it is behind (9.7.1).
func distance(from, psn uint32) int32 { return int32((psn-from)<<8) >> 8 }

// header has the headers behind the UDP header.
type header struct {
	op        uint8
	solicited bool
	pad       uint8
	qpn       uint32
	ackReq    bool
	psn       uint32
	va        uint64 // RETH, with the next two fields
	key       uint32
	dmaLen    uint32
	syndrome  uint8 // AETH, with the next field
	msn       uint32
	imm       uint32
	size      uint32 // set by parse: length of these headers, in bytes
}

// defaultPKey is the key of the default partition, the only one here (A17).
const defaultPKey = 0xffff

func (h *header) append(b []byte) []byte {
	s := &shapes[h.op]
	flags := h.pad << 4
	if h.solicited {
		flags |= 0x80
	}
	flags |= 0x40 // MigReq: the migrated state, as without path migration
	b = append(b, h.op, flags)
	b = binary.BigEndian.AppendUint16(b, defaultPKey)
	b = binary.BigEndian.AppendUint32(b, h.qpn&psnMask)
	psn := h.psn & psnMask
	if h.ackReq {
		psn |= 1 << 31
	}
	b = binary.BigEndian.AppendUint32(b, psn)
	if s.reth {
		b = binary.BigEndian.AppendUint64(b, h.va)
		b = binary.BigEndian.AppendUint32(b, h.key)
		b = binary.BigEndian.AppendUint32(b, h.dmaLen)
	}
	if s.aeth {
		b = binary.BigEndian.AppendUint32(b, uint32(h.syndrome)<<24|h.msn&psnMask)
	}
	if s.imm {
		b = binary.BigEndian.AppendUint32(b, h.imm)
	}
	return b
}

// parse reads a header from the start of b; false: it is incomplete, or its operation code, version or partition
// key is unknown.
func (h *header) parse(b []byte) bool {
	if len(b) < bthLen || b[0] >= allOps || !shapes[b[0]].known {
		return false
	}
	flags, pkey := b[1], binary.BigEndian.Uint16(b[2:])
	if flags&0xf != 0 || pkey&0x7fff != defaultPKey&0x7fff { // not version 0, or no full or limited member
		return false
	}
	*h = header{op: b[0], solicited: flags&0x80 != 0, pad: flags >> 4 & 3, qpn: binary.BigEndian.Uint32(b[4:]) & psnMask,
		ackReq: b[8]&0x80 != 0, psn: binary.BigEndian.Uint32(b[8:]) & psnMask, size: bthLen}
	s := &shapes[h.op]
	if s.reth {
		if len(b) < int(h.size)+rethLen {
			return false
		}
		h.va = binary.BigEndian.Uint64(b[h.size:])
		h.key = binary.BigEndian.Uint32(b[h.size+8:])
		h.dmaLen = binary.BigEndian.Uint32(b[h.size+12:])
		h.size += rethLen
	}
	if s.aeth {
		if len(b) < int(h.size)+aethLen {
			return false
		}
		v := binary.BigEndian.Uint32(b[h.size:])
		h.syndrome, h.msn = uint8(v>>24), v&psnMask
		h.size += aethLen
	}
	if s.imm {
		if len(b) < int(h.size)+immLen {
			return false
		}
		h.imm = binary.BigEndian.Uint32(b[h.size:])
		h.size += immLen
	}
	return true
}

func (h *header) length() uint32 {
	s, n := &shapes[h.op], uint32(bthLen)
	if s.reth {
		n += rethLen
	}
	if s.aeth {
		n += aethLen
	}
	if s.imm {
		n += immLen
	}
	return n
}

type scratch [8 + 40 + 8 + maxExt]byte

// invariant begins the invariant CRC (ICRC) of a packet (A17.3.3): it returns the CRC-32 over 8 bytes 0xff, the IP and
// UDP headers and the BTH, with ones in place of the fields that routers change, and the headers after the BTH. The
// caller continues the CRC over payload and padding. frame has the headers up to the UDP header, ext those after it.
func invariant(mem *scratch, h *splitter.Headers, frame, ext []byte) uint32 {
	b := append(mem[:0], 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff)
	ip := len(b)
	b = append(b, frame[h.L3Off:h.HdrLen]...)
	udp := ip + int(h.L4Off-h.L3Off)
	if h.IPv6 {
		b[ip] |= 0x0f // traffic class and flow label
		b[ip+1], b[ip+2], b[ip+3] = 0xff, 0xff, 0xff
		b[ip+7] = 0xff // hop limit
	} else {
		b[ip+1], b[ip+8] = 0xff, 0xff // type of service, time to live
		b[ip+10], b[ip+11] = 0xff, 0xff
	}
	b[udp+6], b[udp+7] = 0xff, 0xff
	bth := len(b)
	b = append(b, ext...)
	b[bth+4] = 0xff
	return crc32.ChecksumIEEE(b)
}

var zeros [4]byte

// crcOf continues a CRC over the bytes of segments.
type crcOf struct {
	sum uint32
	add func([]byte) error // made once: a closure for each packet would be garbage
}

func (c *crcOf) init() {
	c.add = func(b []byte) error {
		c.sum = crc32.Update(c.sum, crc32.IEEETable, b)
		return nil
	}
}

func (c *crcOf) over(from *dma.Copier, sum uint32, segs []dma.Segment) (uint32, error) {
	c.sum = sum
	for _, s := range segs {
		if err := from.View(s, 1<<16, c.add); err != nil {
			return 0, err
		}
	}
	return c.sum, nil
}
