package driver

import (
	"fmt"
	"strings"
)

// Feature bits (virtio 1.3, 5.1.3 and 6).
const (
	featCSUM       = 1 << 0  // VIRTIO_NET_F_CSUM
	featGuestCSUM  = 1 << 1  // VIRTIO_NET_F_GUEST_CSUM
	featMTU        = 1 << 3  // VIRTIO_NET_F_MTU
	featMAC        = 1 << 5  // VIRTIO_NET_F_MAC
	featGuestTSO4  = 1 << 7  // VIRTIO_NET_F_GUEST_TSO4
	featGuestTSO6  = 1 << 8  // VIRTIO_NET_F_GUEST_TSO6
	featGuestECN   = 1 << 9  // VIRTIO_NET_F_GUEST_ECN
	featHostTSO4   = 1 << 11 // VIRTIO_NET_F_HOST_TSO4
	featHostTSO6   = 1 << 12 // VIRTIO_NET_F_HOST_TSO6
	featHostECN    = 1 << 13 // VIRTIO_NET_F_HOST_ECN
	featMrgRxBuf   = 1 << 15 // VIRTIO_NET_F_MRG_RXBUF
	featStatus     = 1 << 16 // VIRTIO_NET_F_STATUS
	featCtrlVQ     = 1 << 17 // VIRTIO_NET_F_CTRL_VQ
	featMQ         = 1 << 22 // VIRTIO_NET_F_MQ
	featIndirect   = 1 << 28 // VIRTIO_F_INDIRECT_DESC
	featEventIdx   = 1 << 29 // VIRTIO_F_EVENT_IDX
	featVersion1   = 1 << 32 // VIRTIO_F_VERSION_1
	featRingReset  = 1 << 40 // VIRTIO_F_RING_RESET
	featsMandatory = featVersion1 | featMrgRxBuf
)

// featsWanted are all features that the driver can use.
const featsWanted = featsMandatory | featCSUM | featGuestCSUM | featMTU | featMAC | featGuestTSO4 | featGuestTSO6 |
	featGuestECN | featHostTSO4 | featHostTSO6 | featHostECN | featStatus | featCtrlVQ | featMQ | featIndirect |
	featEventIdx | featRingReset

var featNames = []struct {
	bit  uint64
	name string
}{
	{featCSUM, "CSUM"}, {featGuestCSUM, "GUEST_CSUM"}, {featMTU, "MTU"}, {featMAC, "MAC"},
	{featGuestTSO4, "GUEST_TSO4"}, {featGuestTSO6, "GUEST_TSO6"}, {featGuestECN, "GUEST_ECN"},
	{featHostTSO4, "HOST_TSO4"}, {featHostTSO6, "HOST_TSO6"}, {featHostECN, "HOST_ECN"},
	{featMrgRxBuf, "MRG_RXBUF"}, {featStatus, "STATUS"}, {featCtrlVQ, "CTRL_VQ"}, {featMQ, "MQ"},
	{featIndirect, "INDIRECT_DESC"}, {featEventIdx, "EVENT_IDX"}, {featVersion1, "VERSION_1"},
	{featRingReset, "RING_RESET"},
}

// featureString names the bits, for logs and errors.
func featureString(f uint64) string {
	var s []string
	for _, n := range featNames {
		if f&n.bit != 0 {
			s = append(s, n.name)
			f &^= n.bit
		}
	}
	if f != 0 {
		s = append(s, fmt.Sprintf("%#x", f))
	}
	return strings.Join(s, " ")
}

// chooseFeatures returns the features to accept. It accepts a feature only together with the
// features that it needs (virtio 1.3, 5.1.3.1).
func chooseFeatures(offered uint64) (uint64, error) {
	f := offered & featsWanted
	if miss := featsMandatory &^ f; miss != 0 {
		return 0, fmt.Errorf("%w: it offers %s (%#x), not %s", ErrFeature, featureString(offered&featsWanted), offered,
			featureString(miss))
	}
	for _, need := range []struct{ bits, on uint64 }{
		{featGuestTSO4 | featGuestTSO6, featGuestCSUM},
		{featHostTSO4 | featHostTSO6, featCSUM},
		{featMQ, featCtrlVQ},
	} {
		if f&need.on == 0 {
			f &^= need.bits
		}
	}
	if f&(featGuestTSO4|featGuestTSO6) == 0 {
		f &^= featGuestECN
	}
	if f&(featHostTSO4|featHostTSO6) == 0 {
		f &^= featHostECN
	}
	return f, nil
}

// Offloads are the offloads that the driver and the device have negotiated.
type Offloads struct {
	TxCsum     bool // TxFrame.NeedsCsum
	TxTSO4     bool // TxFrame.GSOType, over IPv4
	TxTSO6     bool
	TxECN      bool // GSO packets with CWR set
	RxCsum     bool // RxFrame.CsumGood
	RxTSO4     bool // RxFrame.GSOType may be set
	RxTSO6     bool
	QueueReset bool // UnbindQueue stops the queue; without it, the device must return the chains itself
}

func offloads(f uint64) Offloads {
	has := func(bit uint64) bool { return f&bit != 0 }
	return Offloads{
		TxCsum: has(featCSUM), TxTSO4: has(featHostTSO4), TxTSO6: has(featHostTSO6), TxECN: has(featHostECN),
		RxCsum: has(featGuestCSUM), RxTSO4: has(featGuestTSO4), RxTSO6: has(featGuestTSO6),
		QueueReset: has(featRingReset),
	}
}
