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

// A feature is accepted only with the features that it needs (virtio 1.3, 5.1.3.1).
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

// Offloads are the offloads that the driver and the device have negotiated.
type Offloads struct {
	TxCsum     bool // the device completes checksums (TxFrame.NeedsCsum)
	TxTSO4     bool // the device segments (TxFrame.GSOType), over IPv4
	TxTSO6     bool
	TxECN      bool // GSO packets with CWR set
	RxCsum     bool // the device may leave checksums incomplete
	RxTSO4     bool // RxFrame.GSOType may be set
	RxTSO6     bool
	QueueReset bool // UnbindQueue can stop the queue
}

func offloads(f uint64) Offloads {
	has := func(bit uint64) bool { return f&bit != 0 }
	return Offloads{
		TxCsum: has(virtionet.FCsum), TxTSO4: has(virtionet.FHostTSO4), TxTSO6: has(virtionet.FHostTSO6),
		TxECN: has(virtionet.FHostECN), RxCsum: has(virtionet.FGuestCsum), RxTSO4: has(virtionet.FGuestTSO4),
		RxTSO6: has(virtionet.FGuestTSO6), QueueReset: has(vhostuser.FeatureRingReset),
	}
}
