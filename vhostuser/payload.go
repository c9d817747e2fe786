package vhostuser

import (
	"fmt"

	"vnic.dev/vnic/internal/peer"
)

// Lengths of payloads and of their parts (vhost-user.rst, "Payload").
const (
	u64Len          = 8
	vringStateLen   = 8
	vringAddrLen    = 40
	memRegionLen    = 32
	memTableHeadLen = 8
	singleRegionLen = 8 + memRegionLen
	configHeadLen   = 12

	// maxPayload is the payload of the longest message, GET_CONFIG and SET_CONFIG.
	maxPayload = configHeadLen + MaxConfig
)

const (
	// MaxTableRegions is how many regions a SET_MEM_TABLE holds at most.
	MaxTableRegions = 8
	// MaxMemSlots is how many regions a connection may have: as many as libvhost-user's
	// (VHOST_USER_MAX_RAM_SLOTS).
	MaxMemSlots = 509
	// MaxConfig is how many bytes of configuration one message may hold (QEMU VHOST_USER_MAX_CONFIG_SIZE).
	MaxConfig = 256
	// MaxVrings is how many rings the kick, call and err messages can name.
	MaxVrings = 256
	// MaxRingSize is the largest number of descriptors in a ring (virtio 1.3, 2.7).
	MaxRingSize = 32768
)

// vringState is "A vring state description".
type vringState struct {
	Index uint32 // offset 0
	Num   uint32 // 4
}

// vringAddr is "A vring address description", as struct vhost_vring_addr (linux/vhost_types.h).
type vringAddr struct {
	Index uint32 // offset 0
	Flags uint32 // 4
	Desc  uint64 // 8: user address
	Used  uint64 // 16: user address
	Avail uint64 // 24: user address
	Log   uint64 // 32: guest address for logging
}

const vringLog = 1 << 0 // VHOST_VRING_F_LOG

// In the payload of SET_VRING_KICK, SET_VRING_CALL and SET_VRING_ERR bits 0 to 7 are the ring's index; vringNoFD is set
// if no descriptor comes with the message.
const vringNoFD = 1 << 8 // VHOST_USER_VRING_NOFD_MASK

// memRegion is "Memory region description".
type memRegion struct {
	GPA    uint64 // offset 0: guest address
	Size   uint64 // 8
	User   uint64 // 16: user address
	Offset uint64 // 24: mmap offset, "where region starts in the mapped memory"
}

// decodeMemTable decodes "Multiple Memory regions description".
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
		regions[i] = peer.Decode[memRegion](b[i*memRegionLen:])
	}
	return regions, nil
}

func appendMemTable(b []byte, regions []memRegion) []byte {
	b = le.AppendUint32(b, uint32(len(regions)))
	b = le.AppendUint32(b, 0) // padding
	return peer.Append(b, regions)
}

// singleRegion is "Single memory region description".
type singleRegion struct {
	_ uint64
	memRegion
}

// configHead precedes the bytes in "Virtio device config space".
type configHead struct {
	Offset uint32 // offset 0
	Size   uint32 // 4
	Flags  uint32 // 8: 0 for writable fields, 1 for live migration
}

// decodeConfig decodes "Virtio device config space". data is a part of b.
func decodeConfig(b []byte) (head configHead, data []byte, err error) {
	if len(b) < configHeadLen {
		return head, nil, fmt.Errorf("payload of %d bytes: %w", len(b), ErrBadMessage)
	}
	head = peer.Decode[configHead](b)
	data = b[configHeadLen:]
	if uint64(head.Size) != uint64(len(data)) || head.Size > MaxConfig {
		return head, nil, fmt.Errorf("%d bytes of configuration in %d: %w", head.Size, len(data), ErrBadMessage)
	}
	return head, data, nil
}
