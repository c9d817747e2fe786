package uplink

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/splitter"
)

// Constants of struct virtio_net_hdr_v1 (virtio 1.3, 5.1.6; include/uapi/linux/virtio_net.h), with which a tap precedes
// each frame after TUNSETVNETHDRSZ with 12: flags u8, gso_type u8, hdr_len u16, gso_size u16, csum_start u16,
// csum_offset u16, num_buffers u16. A tap uses the machine's byte order (drivers/net/tun_vnet.h); readVnet assumes
// little endian.
const (
	vnetLen       = 12
	vnetNeedsCsum = 1    // VIRTIO_NET_HDR_F_NEEDS_CSUM
	vnetDataValid = 2    // VIRTIO_NET_HDR_F_DATA_VALID
	vnetGSOTCPv4  = 1    // VIRTIO_NET_HDR_GSO_TCPV4
	vnetGSOTCPv6  = 4    // VIRTIO_NET_HDR_GSO_TCPV6
	vnetGSOECN    = 0x80 // VIRTIO_NET_HDR_GSO_ECN
)

// offloads are the TUN_F flags of TUNSETOFFLOAD: the kernel may leave checksums and TCP segmentation of frames that the
// uplink reads from a tap to the uplink.
const offloads = unix.TUN_F_CSUM | unix.TUN_F_TSO4 | unix.TUN_F_TSO6 | unix.TUN_F_TSO_ECN

// readVnet sets m, except m.Headers, from the virtio_net_hdr b of a frame from a tap. It returns badHeader for
// a GSO packet of another type than TCP, or without a partial checksum; else none.
func readVnet(b *[vnetLen]byte, m *splitter.Meta) reason {
	*m = splitter.Meta{Headers: m.Headers}
	switch {
	case b[0]&vnetNeedsCsum != 0:
		m.Csum, m.CsumStart, m.CsumOffset = splitter.CsumPartial, binary.LittleEndian.Uint16(b[6:]),
			binary.LittleEndian.Uint16(b[8:])
	case b[0]&vnetDataValid != 0:
		m.Csum = splitter.CsumGood
	}
	switch b[1] &^ vnetGSOECN {
	case 0:
		return none
	case vnetGSOTCPv4:
		m.GSOType = splitter.GSOTCPv4
	case vnetGSOTCPv6:
		m.GSOType = splitter.GSOTCPv6
	default:
		return badHeader // a GSO type without a flag in offloads
	}
	if m.Csum != splitter.CsumPartial {
		return badHeader
	}
	m.ECN, m.GSOSize = b[1]&vnetGSOECN != 0, binary.LittleEndian.Uint16(b[4:])
	return none
}

// putVnet writes to b the virtio_net_hdr of an outgoing frame: zeros, because its checksum is complete and it needs no
// segmentation.
func putVnet(b []byte) { clear(b[:vnetLen]) }
