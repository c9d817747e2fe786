package virtq

import (
	"encoding/binary"
	"fmt"
)

// Ring fields are little endian, in virtio 1 devices.
var le = binary.LittleEndian

// Descriptor flags (virtio 1.3, 2.7.5).
const (
	flagNext     = 1 // VIRTQ_DESC_F_NEXT
	flagWrite    = 2 // VIRTQ_DESC_F_WRITE
	flagIndirect = 4 // VIRTQ_DESC_F_INDIRECT
)

const (
	availNoInterrupt = 1 // VIRTQ_AVAIL_F_NO_INTERRUPT (2.7.6)
	usedNoNotify     = 1 // VIRTQ_USED_F_NO_NOTIFY (2.7.8)
)

// A split ring has three parts (2.7): a table of desc; avail {flags, idx, ring[n] u16, used_event}; used
// {flags, idx, ring[n] {id u32, len u32}, avail_event}.
const (
	descLen    = 16
	availElem  = 2
	usedElem   = 8
	ringHeader = 4 // flags, idx

	descAlign  = 16
	availAlign = 2
	usedAlign  = 4

	pageLen = 4096
)

func availLen(size int) int { return ringHeader + availElem*size + 2 }
func usedLen(size int) int  { return ringHeader + usedElem*size + 2 }

func checkSize(size uint16) error {
	if size == 0 || size > MaxSize || size&(size-1) != 0 {
		return fmt.Errorf("size %d is not a power of two up to %d: %w", size, MaxSize, ErrBadRing)
	}
	return nil
}

// Layout returns the offsets of a ring's three parts, each of whole pages of 4 KiB, and their total length.
func Layout(size uint16) (desc, avail, used, total uint64) {
	page := func(n uint64) uint64 { return (n + pageLen - 1) &^ (pageLen - 1) }
	avail = page(descLen * uint64(size))
	used = avail + page(uint64(availLen(int(size))))
	total = used + page(uint64(usedLen(int(size))))
	return 0, avail, used, total
}

// desc has the fields of a descriptor (2.7.5), outside of the ring; the offsets are for the ring.
type desc struct {
	addr  uint64 // offset 0
	len   uint32 // 8
	flags uint16 // 12
	next  uint16 // 14
}

// The peer may rewrite a descriptor at any moment: decode reads each of its two 8-byte words once.
func decode(b *[descLen]byte) desc {
	addr, rest := le.Uint64(b[0:]), le.Uint64(b[8:])
	return desc{addr: addr, len: uint32(rest), flags: uint16(rest >> 32), next: uint16(rest >> 48)}
}

func (d *desc) encode(b *[descLen]byte) {
	le.PutUint64(b[0:], d.addr)
	le.PutUint64(b[8:], uint64(d.len)|uint64(d.flags)<<32|uint64(d.next)<<48)
}

// needEvent is Linux's vring_need_event (2.7.7.2, 2.7.10.1): it reports whether an index that went from old to new
// passed event, where the peer asked for a notification.
func needEvent(event, new, old uint16) bool { return new-event-1 < new-old }
