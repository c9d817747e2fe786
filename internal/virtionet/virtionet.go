// Package virtionet has numbers of virtio-net (virtio 1.3, 5.1) for the driver (internal/driver) and the device
// (internal/nic/virtio). Package vhostuser has the feature bits that do not depend on the device type.
package virtionet

// Feature bits VIRTIO_NET_F_* (virtio 1.3, 5.1.3).
const (
	FCsum      uint64 = 1 << 0
	FGuestCsum uint64 = 1 << 1
	FMTU       uint64 = 1 << 3
	FMAC       uint64 = 1 << 5
	FGuestTSO4 uint64 = 1 << 7
	FGuestTSO6 uint64 = 1 << 8
	FGuestECN  uint64 = 1 << 9
	FHostTSO4  uint64 = 1 << 11
	FHostTSO6  uint64 = 1 << 12
	FHostECN   uint64 = 1 << 13
	FMrgRxBuf  uint64 = 1 << 15
	FStatus    uint64 = 1 << 16
	FCtrlVQ    uint64 = 1 << 17
	FMQ        uint64 = 1 << 22
)

// Implemented are the VIRTIO_NET_F_* features that both the driver and the device implement.
const Implemented = FCsum | FGuestCsum | FMTU | FMAC | FGuestTSO4 | FGuestTSO6 | FGuestECN | FHostTSO4 | FHostTSO6 |
	FHostECN | FMrgRxBuf | FStatus | FMQ

// FeatureNames has names of virtio-net's feature bits (virtio 1.3, 5.1.3 and 5.1.3.2) by number; "": no name.
var FeatureNames = [64]string{
	0: "CSUM", 1: "GUEST_CSUM", 2: "CTRL_GUEST_OFFLOADS", 3: "MTU", 5: "MAC", 6: "GSO", 7: "GUEST_TSO4", 8: "GUEST_TSO6",
	9: "GUEST_ECN", 10: "GUEST_UFO", 11: "HOST_TSO4", 12: "HOST_TSO6", 13: "HOST_ECN", 14: "HOST_UFO", 15: "MRG_RXBUF",
	16: "STATUS", 17: "CTRL_VQ", 18: "CTRL_RX", 19: "CTRL_VLAN", 20: "CTRL_RX_EXTRA", 21: "GUEST_ANNOUNCE", 22: "MQ",
	23: "CTRL_MAC_ADDR", 50: "DEVICE_STATS", 51: "HASH_TUNNEL", 52: "VQ_NOTF_COAL", 53: "NOTF_COAL", 54: "GUEST_USO4",
	55: "GUEST_USO6", 56: "HOST_USO", 57: "HASH_REPORT", 59: "GUEST_HDRLEN", 60: "RSS", 61: "RSC_EXT", 62: "STANDBY",
	63: "SPEED_DUPLEX",
}

// Flags and GSO types of struct virtio_net_hdr, VIRTIO_NET_HDR_* (virtio 1.3, 5.1.6).
const (
	HdrNeedsCsum = 1
	HdrDataValid = 2

	HdrGSONone  = 0
	HdrGSOTCPv4 = 1
	HdrGSOTCPv6 = 4
	HdrGSOUDPL4 = 5
	HdrGSOECN   = 0x80
)
