package vhostuser

import (
	"fmt"
)

// Lengths of the payloads (vhost-user.rst, "Payload").
const (
	u64Len          = 8
	vringStateLen   = 8
	vringAddrLen    = 40
	memRegionLen    = 32
	memTableHeadLen = 8
	singleRegionLen = 8 + memRegionLen
	configHeadLen   = 12

	// maxPayload is that of the longest message, GET_CONFIG and SET_CONFIG.
	maxPayload = configHeadLen + MaxConfig
)

const (
	// MaxTableRegions is how many regions a SET_MEM_TABLE holds: "Multiple Memory regions description", region7 is
	// the last. ADD_MEM_REG goes beyond.
	MaxTableRegions = 8
	// MaxMemSlots is the answer to GET_MAX_MEM_SLOTS, and how many regions a session holds: as many as libvhost-user's
	// (VHOST_USER_MAX_RAM_SLOTS), on which QEMU is tested.
	MaxMemSlots = 509
	// MaxConfig is the largest configuration space (QEMU VHOST_USER_MAX_CONFIG_SIZE).
	MaxConfig = 256
	// MaxVrings is how many rings the kick, call and err messages can name: bits 0 to 7 (SET_VRING_KICK).
	MaxVrings = 256
	// MaxRingSize is the largest number of descriptors in a ring (virtio 1.3, 2.7).
	MaxRingSize = 32768
)

// vringState is "A vring state description". In SET_VRING_BASE and GET_VRING_BASE of a split ring
// the low 16 bits of num are the next index in the available ring ("Vring descriptor index for
// split virtqueues").
type vringState struct {
	index uint32 // offset 0
	num   uint32 // 4
}

func (v *vringState) decode(b *[vringStateLen]byte) {
	v.index = le.Uint32(b[0:])
	v.num = le.Uint32(b[4:])
}

func (v *vringState) encode(b *[vringStateLen]byte) {
	le.PutUint32(b[0:], v.index)
	le.PutUint32(b[4:], v.num)
}

// vringAddr is "A vring address description". The document draws a size between flags and descriptor that
// struct vhost_vring_addr (linux/vhost_types.h), which is what is sent, does not have.
type vringAddr struct {
	index uint32 // offset 0
	flags uint32 // 4
	desc  uint64 // 8: user addresses
	used  uint64 // 16
	avail uint64 // 24
	log   uint64 // 32: guest address for logging
}

const vringLog = 1 << 0 // VHOST_VRING_F_LOG

func (v *vringAddr) decode(b *[vringAddrLen]byte) {
	v.index = le.Uint32(b[0:])
	v.flags = le.Uint32(b[4:])
	v.desc = le.Uint64(b[8:])
	v.used = le.Uint64(b[16:])
	v.avail = le.Uint64(b[24:])
	v.log = le.Uint64(b[32:])
}

func (v *vringAddr) encode(b *[vringAddrLen]byte) {
	le.PutUint32(b[0:], v.index)
	le.PutUint32(b[4:], v.flags)
	le.PutUint64(b[8:], v.desc)
	le.PutUint64(b[16:], v.used)
	le.PutUint64(b[24:], v.avail)
	le.PutUint64(b[32:], v.log)
}

// vringFD is the payload of SET_VRING_KICK, SET_VRING_CALL and SET_VRING_ERR: bits 0 to 7 are the ring, bit 8 says that
// no descriptor comes with the message.
type vringFD struct {
	index uint8
	none  bool
}

const vringNoFD = 1 << 8 // VHOST_USER_VRING_NOFD_MASK

func (v *vringFD) decode(b *[u64Len]byte) {
	n := le.Uint64(b[:])
	v.index, v.none = uint8(n), n&vringNoFD != 0
}

func (v *vringFD) encode(b *[u64Len]byte) {
	n := uint64(v.index)
	if v.none {
		n |= vringNoFD
	}
	le.PutUint64(b[:], n)
}

// memRegion is "Memory region description".
type memRegion struct {
	gpa    uint64 // offset 0: guest address
	size   uint64 // 8
	user   uint64 // 16: user address
	offset uint64 // 24: mmap offset, "where region starts in the mapped memory"
}

func (r *memRegion) decode(b *[memRegionLen]byte) {
	r.gpa = le.Uint64(b[0:])
	r.size = le.Uint64(b[8:])
	r.user = le.Uint64(b[16:])
	r.offset = le.Uint64(b[24:])
}

func (r *memRegion) encode(b *[memRegionLen]byte) {
	le.PutUint64(b[0:], r.gpa)
	le.PutUint64(b[8:], r.size)
	le.PutUint64(b[16:], r.user)
	le.PutUint64(b[24:], r.offset)
}

// decodeMemTable decodes "Multiple Memory regions description": a count, padding, and that many regions.
func decodeMemTable(b []byte) ([]memRegion, error) {
	if len(b) < memTableHeadLen {
		return nil, fmt.Errorf("payload of %d bytes: %w", len(b), ErrBadMessage)
	}
	n := le.Uint32(b)
	if n > MaxTableRegions {
		return nil, fmt.Errorf("%d regions, more than %d: %w", n, MaxTableRegions, ErrBadMessage)
	}
	if b = b[memTableHeadLen:]; len(b) != int(n)*memRegionLen {
		return nil, fmt.Errorf("%d regions in %d bytes: %w", n, len(b), ErrBadMessage)
	}
	regions := make([]memRegion, n)
	for i := range regions {
		regions[i].decode((*[memRegionLen]byte)(b[i*memRegionLen:]))
	}
	return regions, nil
}

// appendMemTable encodes what decodeMemTable decodes.
func appendMemTable(b []byte, regions []memRegion) []byte {
	b = le.AppendUint32(b, uint32(len(regions)))
	b = le.AppendUint32(b, 0) // padding
	for i := range regions {
		var a [memRegionLen]byte
		regions[i].encode(&a)
		b = append(b, a[:]...)
	}
	return b
}

// singleRegion is "Single memory region description": padding and a region.
type singleRegion struct{ memRegion }

func (r *singleRegion) decode(b *[singleRegionLen]byte) {
	r.memRegion.decode((*[memRegionLen]byte)(b[8:]))
}

func (r *singleRegion) encode(b *[singleRegionLen]byte) {
	le.PutUint64(b[0:], 0)
	r.memRegion.encode((*[memRegionLen]byte)(b[8:]))
}

// configHead precedes the bytes in "Virtio device config space".
type configHead struct {
	offset uint32 // offset 0
	size   uint32 // 4
	flags  uint32 // 8: 0 for writable fields, 1 for live migration
}

func (c *configHead) decode(b *[configHeadLen]byte) {
	c.offset = le.Uint32(b[0:])
	c.size = le.Uint32(b[4:])
	c.flags = le.Uint32(b[8:])
}

func (c *configHead) encode(b *[configHeadLen]byte) {
	le.PutUint32(b[0:], c.offset)
	le.PutUint32(b[4:], c.size)
	le.PutUint32(b[8:], c.flags)
}

// decodeConfig decodes "Virtio device config space": data is the rest of b, head.size bytes long.
func decodeConfig(b []byte) (head configHead, data []byte, err error) {
	if len(b) < configHeadLen {
		return head, nil, fmt.Errorf("payload of %d bytes: %w", len(b), ErrBadMessage)
	}
	head.decode((*[configHeadLen]byte)(b))
	data = b[configHeadLen:]
	if uint64(head.size) != uint64(len(data)) || head.size > MaxConfig {
		return head, nil, fmt.Errorf("%d bytes of configuration in %d: %w", head.size, len(data), ErrBadMessage)
	}
	return head, data, nil
}
