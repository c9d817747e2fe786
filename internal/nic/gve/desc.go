package gve

// Rings are little endian, unlike the control plane (gve_desc_dqo.h).

// Sizes of descriptors.
const (
	rxBufLen   = 32 // struct gve_rx_desc_dqo
	rxComplLen = 32 // struct gve_rx_compl_desc_dqo
	txDescLen  = 16 // struct gve_tx_pkt_desc_dqo and the context descriptors
	txComplLen = 8  // struct gve_tx_compl_desc
)

type rxBuf struct {
	id     uint16 // offset 0
	addr   uint64 // 8
	header uint64 // 16: address of the header buffer
}

func (d *rxBuf) decode(b *[rxBufLen]byte) {
	d.id = le.Uint16(b[0:])
	d.addr = le.Uint64(b[8:])
	d.header = le.Uint64(b[16:])
}

type rxCompl struct {
	bad       bool   // rx_error
	ptype     uint16 // packet_type
	length    uint16 // packet_len: bytes in this buffer
	headerLen uint16 // header_len: bytes in the header buffer
	split     bool   // split_header
	overflow  bool   // header_buffer_overflow
	eop       bool   // end_of_packet
	checked   bool   // l3_l4_processed
	ipBad     bool   // csum_ip_err
	l4Bad     bool   // csum_l4_err
	segLen    uint16 // rsc_seg_len of a GSO packet; else 0
	id        uint16 // buf_id
	hash      uint32
	stamped   bool   // timestamp valid
	stamp     uint32 // the low half of the time, in nanoseconds
}

// Bits, values and bounds of the completion's fields.
const (
	rxMaxLen = 1<<14 - 1 // packet_len has 14 bits
	rxMaxHdr = 1<<10 - 1 // header_len has 10 bits

	rxDID        = 1       // byte 0: rxdid
	rxError      = 1 << 2  // byte 1
	rxGeneration = 1 << 14 // of the word at 4; bit 15 is the buffer queue's id, 0
	rxRSC        = 1 << 26
	rxSplit      = 1 << 27
	rxDone       = 1 << 0 // byte 8, as the next five
	rxEOP        = 1 << 1
	rxOverflow   = 1 << 2
	rxChecked    = 1 << 3
	rxIPBad      = 1 << 4
	rxL4Bad      = 1 << 5
	rxStamped    = 1 << 0 // byte 11: GVE_DQO_RX_HWTSTAMP_VALID
)

// encode writes the completion without the word at offset 4, which it returns with the generation bit clear. The
// caller must store that word last.
func (c *rxCompl) encode(b []byte) (word uint32) {
	e := (*[rxComplLen]byte)(b)
	e[0], e[1] = rxDID, pick(c.bad, rxError)
	le.PutUint16(e[2:], c.ptype)
	e[8] = rxDone | pick(c.eop, rxEOP) | pick(c.overflow, rxOverflow) | pick(c.checked, rxChecked) |
		pick(c.ipBad, rxIPBad) | pick(c.l4Bad, rxL4Bad)
	e[9], e[10], e[11] = 0, 0, pick(c.stamped, rxStamped)
	le.PutUint16(e[12:], c.id)
	le.PutUint16(e[14:], c.segLen)
	le.PutUint32(e[16:], c.hash)
	le.PutUint64(e[20:], 0)
	le.PutUint32(e[28:], c.stamp)
	word = uint32(c.length)&rxMaxLen | uint32(c.headerLen&rxMaxHdr)<<16
	if c.segLen != 0 {
		word |= rxRSC
	}
	if c.split {
		word |= rxSplit
	}
	return word
}

func pick(on bool, bit byte) byte {
	if on {
		return bit
	}
	return 0
}

// Types of transmit descriptors: the low 5 bits of byte 8.
const (
	txGeneral = 0x04 // GVE_TX_GENERAL_CTX_DESC_DTYPE_DQO: its metadata are ignored
	txTSO     = 0x05 // GVE_TX_TSO_CTX_DESC_DTYPE_DQO
	txPacket  = 0x0c // GVE_TX_PKT_DESC_DTYPE_DQO
)

type txDesc struct {
	kind uint8

	// Of a txPacket; else zero.
	addr   uint64 // offset 0
	eop    bool   // byte 8, bit 5: the packet's last descriptor
	csum   bool   // bit 6: the layer 4 checksum is partial
	report bool   // bit 7: request for a descriptor completion
	tag    uint16 // 12: for the packet's completion
	length uint16 // 14: 14 bits

	// Of a txTSO; else zero.
	total     uint32 // offset 0, 24 bits: bytes of payload to segment
	mss       uint16 // 4: 14 bits
	headerLen uint8  // 6
	tso       bool   // byte 8, bit 5
}

func (d *txDesc) decode(b *[txDescLen]byte) {
	*d = txDesc{kind: b[8] & 0x1f}
	switch d.kind {
	case txPacket:
		d.addr = le.Uint64(b[0:])
		d.eop, d.csum, d.report = b[8]&(1<<5) != 0, b[8]&(1<<6) != 0, b[8]&(1<<7) != 0
		d.tag = le.Uint16(b[12:])
		d.length = le.Uint16(b[14:]) & (1<<14 - 1)
	case txTSO:
		d.total = le.Uint32(b[0:]) & (1<<24 - 1)
		d.mss = le.Uint16(b[4:]) & (1<<14 - 1)
		d.headerLen = b[6]
		d.tso = b[8]&(1<<5) != 0
	}
}

// Types of transmit completions.
const (
	txPacketDone = 2 // GVE_COMPL_TYPE_DQO_PKT: value is the packet's tag
	txDescDone   = 4 // GVE_COMPL_TYPE_DQO_DESC: value is the ring index behind the last descriptor read
)

// txComplWord returns the first word of a transmit completion, with generation 0.
func txComplWord(queue int, kind, value uint16) uint32 {
	return uint32(queue)&(1<<11-1) | uint32(kind)<<11 | uint32(value)<<16
}

const txGeneration = 1 << 15
