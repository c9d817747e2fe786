package vhostuser

import (
	"cmp"
	"fmt"
	"strings"
)

// FeatureProtocol is bit 30, by which vhost-user negotiates protocol features (vhost-user.rst, "Communication":
// VHOST_USER_F_PROTOCOL_FEATURES).
const FeatureProtocol uint64 = 1 << 30

// Ring and transport bits of the virtio features (virtio 1.3, 6; VHOST_F_LOG_ALL:
// linux/vhost_types.h). Bits below 24 and from 50 on belong to the device type.
const (
	FeatureNotifyOnEmpty  uint64 = 1 << 24 // VIRTIO_F_NOTIFY_ON_EMPTY
	FeatureLogAll         uint64 = 1 << 26 // VHOST_F_LOG_ALL
	FeatureAnyLayout      uint64 = 1 << 27 // VIRTIO_F_ANY_LAYOUT
	FeatureIndirect       uint64 = 1 << 28 // VIRTIO_F_RING_INDIRECT_DESC
	FeatureEventIdx       uint64 = 1 << 29 // VIRTIO_F_RING_EVENT_IDX
	FeatureVersion1       uint64 = 1 << 32 // VIRTIO_F_VERSION_1
	FeatureAccessPlatform uint64 = 1 << 33 // VIRTIO_F_ACCESS_PLATFORM
	FeaturePacked         uint64 = 1 << 34 // VIRTIO_F_RING_PACKED
	FeatureInOrder        uint64 = 1 << 35 // VIRTIO_F_IN_ORDER
	FeatureOrderPlatform  uint64 = 1 << 36 // VIRTIO_F_ORDER_PLATFORM
	FeatureSRIOV          uint64 = 1 << 37 // VIRTIO_F_SR_IOV
	FeatureNotifyData     uint64 = 1 << 38 // VIRTIO_F_NOTIFICATION_DATA
	FeatureNotifConfig    uint64 = 1 << 39 // VIRTIO_F_NOTIF_CONFIG_DATA
	FeatureRingReset      uint64 = 1 << 40 // VIRTIO_F_RING_RESET
	FeatureAdminVQ        uint64 = 1 << 41 // VIRTIO_F_ADMIN_VQ
)

var featureNames = [64]string{
	24: "NOTIFY_ON_EMPTY", 26: "LOG_ALL", 27: "ANY_LAYOUT", 28: "INDIRECT_DESC", 29: "EVENT_IDX", 30: "PROTOCOL_FEATURES",
	32: "VERSION_1", 33: "ACCESS_PLATFORM", 34: "RING_PACKED", 35: "IN_ORDER", 36: "ORDER_PLATFORM", 37: "SR_IOV",
	38: "NOTIFICATION_DATA", 39: "NOTIF_CONFIG_DATA", 40: "RING_RESET", 41: "ADMIN_VQ",
}

// Features prints virtio feature bits by name. Device, if not nil, names the device type's bits.
type Features struct {
	Bits   uint64
	Device *[64]string
}

// String returns the names of the set bits, joined by |, or "none". A bit N without a name is "bitN".
func (f Features) String() string {
	return bitNames(f.Bits, func(i int) string {
		if f.Device == nil {
			return featureNames[i]
		}
		return cmp.Or(f.Device[i], featureNames[i])
	})
}

// ProtocolFeatures is a set of protocol features (vhost-user.rst, "Protocol features").
type ProtocolFeatures uint64

// The protocol features (VHOST_USER_PROTOCOL_F_*).
const (
	ProtocolMQ                ProtocolFeatures = 1 << 0  // MQ
	ProtocolLogShmFD          ProtocolFeatures = 1 << 1  // LOG_SHMFD
	ProtocolRARP              ProtocolFeatures = 1 << 2  // RARP
	ProtocolReplyAck          ProtocolFeatures = 1 << 3  // REPLY_ACK
	ProtocolMTU               ProtocolFeatures = 1 << 4  // MTU
	ProtocolBackendReq        ProtocolFeatures = 1 << 5  // BACKEND_REQ
	ProtocolCrossEndian       ProtocolFeatures = 1 << 6  // CROSS_ENDIAN
	ProtocolCryptoSession     ProtocolFeatures = 1 << 7  // CRYPTO_SESSION
	ProtocolPagefault         ProtocolFeatures = 1 << 8  // PAGEFAULT
	ProtocolConfig            ProtocolFeatures = 1 << 9  // CONFIG
	ProtocolBackendSendFD     ProtocolFeatures = 1 << 10 // BACKEND_SEND_FD
	ProtocolHostNotifier      ProtocolFeatures = 1 << 11 // HOST_NOTIFIER
	ProtocolInflightShmFD     ProtocolFeatures = 1 << 12 // INFLIGHT_SHMFD
	ProtocolResetDevice       ProtocolFeatures = 1 << 13 // RESET_DEVICE
	ProtocolInband            ProtocolFeatures = 1 << 14 // INBAND_NOTIFICATIONS
	ProtocolMemSlots          ProtocolFeatures = 1 << 15 // CONFIGURE_MEM_SLOTS
	ProtocolStatus            ProtocolFeatures = 1 << 16 // STATUS
	ProtocolXenMmap           ProtocolFeatures = 1 << 17 // XEN_MMAP
	ProtocolSharedObject      ProtocolFeatures = 1 << 18 // SHARED_OBJECT
	ProtocolDeviceState       ProtocolFeatures = 1 << 19 // DEVICE_STATE
	ProtocolVringBaseInflight ProtocolFeatures = 1 << 20 // GET_VRING_BASE_INFLIGHT
	ProtocolGPAAddresses      ProtocolFeatures = 1 << 21 // GPA_ADDRESSES
	ProtocolShmem             ProtocolFeatures = 1 << 22 // SHMEM
)

// SupportedProtocol is the set that a Backend can offer.
const SupportedProtocol = ProtocolMQ | ProtocolRARP | ProtocolReplyAck | ProtocolMTU | ProtocolBackendReq |
	ProtocolConfig | ProtocolResetDevice | ProtocolMemSlots | ProtocolStatus

var protocolNames = [64]string{
	"MQ", "LOG_SHMFD", "RARP", "REPLY_ACK", "MTU", "BACKEND_REQ", "CROSS_ENDIAN", "CRYPTO_SESSION", "PAGEFAULT", "CONFIG",
	"BACKEND_SEND_FD", "HOST_NOTIFIER", "INFLIGHT_SHMFD", "RESET_DEVICE", "INBAND_NOTIFICATIONS", "CONFIGURE_MEM_SLOTS",
	"STATUS", "XEN_MMAP", "SHARED_OBJECT", "DEVICE_STATE", "GET_VRING_BASE_INFLIGHT", "GPA_ADDRESSES", "SHMEM",
}

// String returns the names of the set bits, joined by |, or "none". A bit N without a name is "bitN".
func (p ProtocolFeatures) String() string {
	return bitNames(uint64(p), func(i int) string { return protocolNames[i] })
}

func bitNames(bits uint64, name func(int) string) string {
	if bits == 0 {
		return "none"
	}
	var names []string
	for i := range 64 {
		if bits>>i&1 != 0 {
			names = append(names, cmp.Or(name(i), fmt.Sprintf("bit%d", i)))
		}
	}
	return strings.Join(names, "|")
}
