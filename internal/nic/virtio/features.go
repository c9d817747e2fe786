package virtio

import (
	"vnic.dev/vnic/internal/virtionet"
	"vnic.dev/vnic/internal/wire"
	"vnic.dev/vnic/splitter"
	"vnic.dev/vnic/vhostuser"
)

// offered are the features of a device with several queue pairs. VIRTIO_F_RING_RESET (40) is missing: QEMU 11.1
// answers it itself, and leaves the backend on the old ring.
const offered = virtionet.Implemented | vhostuser.FeatureIndirect | vhostuser.FeatureEventIdx |
	vhostuser.FeatureVersion1

// limits returns the limits of the packets that a driver with these features accepts.
func limits(features uint64, mtu uint16) wire.Limits {
	l := wire.Limits{Csum: features&virtionet.FGuestCsum != 0, ECN: features&virtionet.FGuestECN != 0,
		MaxFrame: uint32(mtu) + splitter.EthLen}
	if features&virtionet.FGuestTSO4 != 0 {
		l.GSO |= wire.GSO(splitter.GSOTCPv4)
	}
	if features&virtionet.FGuestTSO6 != 0 {
		l.GSO |= wire.GSO(splitter.GSOTCPv6)
	}
	if !l.Csum {
		l.GSO = 0
	}
	return l
}
