package driver

import (
	"fmt"

	"vnic.dev/vnic/internal/virtionet"
	"vnic.dev/vnic/vhostuser"
)

const featsMandatory = vhostuser.FeatureVersion1 | virtionet.FMrgRxBuf

const featsWanted = featsMandatory | virtionet.Implemented | virtionet.FCtrlVQ | vhostuser.FeatureIndirect |
	vhostuser.FeatureEventIdx | vhostuser.FeatureRingReset

func featureString(f uint64) string {
	return vhostuser.Features{Bits: f, Device: &virtionet.FeatureNames}.String()
}

// chooseFeatures returns the offered features that the driver wants, without features that need a missing one (virtio
// 1.3, 5.1.3.1). If a mandatory one is not offered, it returns ErrFeature.
func chooseFeatures(offered uint64) (uint64, error) {
	f := offered & featsWanted
	if miss := featsMandatory &^ f; miss != 0 {
		return 0, fmt.Errorf("%w: it offers %s (%#x), not %s", ErrFeature, featureString(offered&featsWanted), offered,
			featureString(miss))
	}
	for _, need := range []struct{ bits, on uint64 }{
		{virtionet.FGuestTSO4 | virtionet.FGuestTSO6, virtionet.FGuestCsum},
		{virtionet.FHostTSO4 | virtionet.FHostTSO6, virtionet.FCsum},
		{virtionet.FMQ, virtionet.FCtrlVQ},
	} {
		if f&need.on == 0 {
			f &^= need.bits
		}
	}
	if f&(virtionet.FGuestTSO4|virtionet.FGuestTSO6) == 0 {
		f &^= virtionet.FGuestECN
	}
	if f&(virtionet.FHostTSO4|virtionet.FHostTSO6) == 0 {
		f &^= virtionet.FHostECN
	}
	return f, nil
}

// Offloads are the offloads that the driver and the device have negotiated, and whether queues can be reset.
type Offloads struct {
	TxCsum     bool // the device completes checksums (NeedsCsum); else the driver does, but not over Device ranges
	TxTSO4     bool // the device segments TCP over IPv4 (TxFrame.GSOType)
	TxTSO6     bool
	TxECN      bool // the device accepts GSO packets with CWR set
	RxCsum     bool // the device may leave checksums incomplete (RxFrame.CsumGood)
	RxTSO4     bool // RxFrame.GSOType may be splitter.GSOTCPv4
	RxTSO6     bool
	QueueReset bool // UnbindQueue stops the queue; if false, it waits until the device has returned the queue's chains
}

func offloads(f uint64) Offloads {
	has := func(bit uint64) bool { return f&bit != 0 }
	return Offloads{
		TxCsum: has(virtionet.FCsum), TxTSO4: has(virtionet.FHostTSO4), TxTSO6: has(virtionet.FHostTSO6),
		TxECN: has(virtionet.FHostECN), RxCsum: has(virtionet.FGuestCsum), RxTSO4: has(virtionet.FGuestTSO4),
		RxTSO6: has(virtionet.FGuestTSO6), QueueReset: has(vhostuser.FeatureRingReset),
	}
}
