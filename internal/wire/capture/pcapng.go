package capture

import (
	"encoding/binary"
	"math"
	"time"
	"unicode/utf8"
)

// Block types of pcapng (draft-ietf-opsawg-pcapng).
const (
	sectionHeader        = 0x0a0d0d0a // 4.1
	interfaceDescription = 1          // 4.2
	enhancedPacket       = 6          // 4.3
	interfaceStatistics  = 5          // 4.6
)

// Fields of the section header (4.1).
const (
	byteOrderMagic = 0x1a2b3c4d
	versionMajor   = 1
	versionMinor   = 0
	lengthUnknown  = math.MaxUint64 // -1, length of the section: the file may be a pipe
)

// linkTypeEthernet is LINKTYPE_ETHERNET (draft-ietf-opsawg-pcaplinktype).
const linkTypeEthernet = 1

// Options of all blocks (3.5).
const (
	optEndOfOptions = 0
	optComment      = 1
)

// Options of a section header (4.1).
const (
	shbHardware = 2
	shbOS       = 3
	shbUserAppl = 4
)

// Options of an interface description (4.2).
const (
	ifName        = 2
	ifDescription = 3
	ifTSResol     = 9
	ifOS          = 12
)

// nanoseconds is an if_tsresol: 10 to the power of -9 seconds.
const nanoseconds = 9

// Options of an enhanced packet (4.3).
const (
	epbFlags     = 2
	epbDropCount = 4
	epbQueue     = 6
)

// Bits of epb_flags (4.3.1): direction and reception type.
const (
	flagInbound   = 1
	flagOutbound  = 2
	flagUnicast   = 1 << 2
	flagMulticast = 2 << 2
	flagBroadcast = 3 << 2
)

// Options of interface statistics (4.6).
const (
	isbStartTime = 2
	isbEndTime   = 3
	isbIfRecv    = 4
	isbIfDrop    = 5
)

// packetHead is the length of an enhanced packet block (4.3) before its data.
const packetHead = 28

var le = binary.LittleEndian

// block is a pcapng block being made, little endian. It is reused: it allocates nothing once it has grown.
type block []byte

// begin starts a block; end fills in its length.
func (b *block) begin(kind uint32) {
	*b = le.AppendUint32((*b)[:0], kind)
	b.uint32(0)
}

func (b *block) uint16(v uint16) { *b = le.AppendUint16(*b, v) }
func (b *block) uint32(v uint32) { *b = le.AppendUint32(*b, v) }
func (b *block) uint64(v uint64) { *b = le.AppendUint64(*b, v) }

// timestamp appends a time, its upper half first (4.3).
func (b *block) timestamp(ns int64) {
	b.uint32(uint32(uint64(ns) >> 32))
	b.uint32(uint32(ns))
}

// option begins an option; the caller appends length bytes and the padding.
func (b *block) option(code, length uint16) {
	b.uint16(code)
	b.uint16(length)
}

func (b *block) pad(n int) {
	var zero [3]byte
	*b = append(*b, zero[:-n&3]...)
}

func (b *block) text(code uint16, s string) {
	if s != "" {
		b.optionText(code, []byte(s))
	}
}

// optionText appends an option with a text. An option's length has 16 bits (3.5): a longer text is cut, between
// characters if it is UTF-8.
func (b *block) optionText(code uint16, s []byte) {
	if n := math.MaxUint16; len(s) > n {
		for n > math.MaxUint16-utf8.UTFMax && !utf8.RuneStart(s[n]) {
			n--
		}
		s = s[:n]
	}
	b.option(code, uint16(len(s)))
	*b = append(*b, s...)
	b.pad(len(s))
}

func (b *block) optionUint32(code uint16, v uint32) {
	b.option(code, 4)
	b.uint32(v)
}

func (b *block) optionUint64(code uint16, v uint64) {
	b.option(code, 8)
	b.uint64(v)
}

func (b *block) optionTime(code uint16, t time.Time) {
	b.option(code, 8)
	b.timestamp(t.UnixNano())
}

// end ends the options and the block; elsewhere is how many bytes of the block are not in b.
func (b *block) end(elsewhere int) {
	b.option(optEndOfOptions, 0)
	n := uint32(len(*b) + elsewhere + 4)
	b.uint32(n)
	le.PutUint32((*b)[4:], n)
}
