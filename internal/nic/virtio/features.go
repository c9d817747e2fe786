package virtio

import (
	"vnic.dev/vnic/internal/wire"
	"vnic.dev/vnic/splitter"
)

// Feature bits of virtio-net (virtio 1.3, 5.1.3) and of the ring (6) that this device implements.
const (
	fCsum      = 1 << 0  // VIRTIO_NET_F_CSUM
	fGuestCsum = 1 << 1  // VIRTIO_NET_F_GUEST_CSUM
	fMTU       = 1 << 3  // VIRTIO_NET_F_MTU
	fMAC       = 1 << 5  // VIRTIO_NET_F_MAC
	fGuestTSO4 = 1 << 7  // VIRTIO_NET_F_GUEST_TSO4
	fGuestTSO6 = 1 << 8  // VIRTIO_NET_F_GUEST_TSO6
	fGuestECN  = 1 << 9  // VIRTIO_NET_F_GUEST_ECN
	fHostTSO4  = 1 << 11 // VIRTIO_NET_F_HOST_TSO4
	fHostTSO6  = 1 << 12 // VIRTIO_NET_F_HOST_TSO6
	fHostECN   = 1 << 13 // VIRTIO_NET_F_HOST_ECN
	fMrgRxbuf  = 1 << 15 // VIRTIO_NET_F_MRG_RXBUF
	fStatus    = 1 << 16 // VIRTIO_NET_F_STATUS
	fMQ        = 1 << 22 // VIRTIO_NET_F_MQ
	fIndirect  = 1 << 28 // VIRTIO_F_INDIRECT_DESC
	fEventIdx  = 1 << 29 // VIRTIO_F_EVENT_IDX
	fVersion1  = 1 << 32 // VIRTIO_F_VERSION_1
)

// offered are the features of each device. The control queue is missing: QEMU implements it.
// VIRTIO_F_RING_RESET (40) is missing: QEMU 11.1 answers it itself, and leaves the backend on the
// old ring.
const offered = fCsum | fGuestCsum | fMTU | fMAC | fGuestTSO4 | fGuestTSO6 | fGuestECN | fHostTSO4 | fHostTSO6 |
	fHostECN | fMrgRxbuf | fStatus | fMQ | fIndirect | fEventIdx | fVersion1

// limits returns the limits of the packets that a driver with these features accepts. The device
// reports the MTU to the driver (VIRTIO_NET_F_MTU), and the driver's buffers need not hold longer
// packets.
func limits(features uint64, mtu uint16) wire.Limits {
	l := wire.Limits{Csum: features&fGuestCsum != 0, ECN: features&fGuestECN != 0, MaxFrame: uint32(mtu) + splitter.EthLen}
	if features&fGuestTSO4 != 0 {
		l.GSO |= wire.GSO(splitter.GSOTCPv4)
	}
	if features&fGuestTSO6 != 0 {
		l.GSO |= wire.GSO(splitter.GSOTCPv6)
	}
	if !l.Csum {
		l.GSO = 0
	}
	return l
}

// featureNames are the feature names of virtio-net (virtio 1.3, 5.1.3 and 5.1.3.2), for errors. It
// also has features that the device does not offer.
var featureNames = [64]string{
	0: "CSUM", 1: "GUEST_CSUM", 2: "CTRL_GUEST_OFFLOADS", 3: "MTU", 5: "MAC", 6: "GSO", 7: "GUEST_TSO4", 8: "GUEST_TSO6",
	9: "GUEST_ECN", 10: "GUEST_UFO", 11: "HOST_TSO4", 12: "HOST_TSO6", 13: "HOST_ECN", 14: "HOST_UFO", 15: "MRG_RXBUF",
	16: "STATUS", 17: "CTRL_VQ", 18: "CTRL_RX", 19: "CTRL_VLAN", 20: "CTRL_RX_EXTRA", 21: "GUEST_ANNOUNCE", 22: "MQ",
	23: "CTRL_MAC_ADDR", 50: "DEVICE_STATS", 51: "HASH_TUNNEL", 52: "VQ_NOTF_COAL", 53: "NOTF_COAL", 54: "GUEST_USO4",
	55: "GUEST_USO6", 56: "HOST_USO", 57: "HASH_REPORT", 59: "GUEST_HDRLEN", 60: "RSS", 61: "RSC_EXT", 62: "STANDBY",
	63: "SPEED_DUPLEX",
}
