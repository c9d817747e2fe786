package vhostuser

// Vring is a virtqueue as the frontend described it, ready to be started.
type Vring struct {
	Index int
	Size  uint16 // number of descriptors, 1 to 32768
	// Desc, Avail and Used are guest-physical addresses (IOVAs in the Space), translated from the
	// frontend's addresses. Each part of the (split) ring lies in one region; its alignment is not
	// checked here.
	Desc, Avail, Used uint64
	// Base is where the ring goes on, in the encoding of the ring's format (split: the next
	// available index). The Backend passes the value of SET_VRING_BASE or of StopQueue on unchanged.
	Base uint32
	// Kick, Call and Err are non-blocking eventfds, -1 for none (no Kick: poll the ring). The device
	// owns them from the call of StartQueue on, even if StartQueue returns an error, and closes them
	// at the latest when the queue stops.
	Kick, Call, Err int
	// Running is set if the queue was started before and the Backend stopped it only for a change
	// (such as of an address, the kick, or the memory in which the ring lies). Then the device must
	// process the ring at once, because it may have consumed a kick before.
	Running bool
}

// Device is a device type that a Backend serves. The goroutine of Serve calls its methods, one at a
// time; on that goroutine a fault in mapped memory is a panic (for dma.Recover). An error that a
// method returns normally makes the request fail: by REPLY_ACK if the frontend asked for that; else
// it is logged, or ends the connection if both ends would disagree from then on (features, memory).
// GET_CONFIG fails by an empty reply, and GET_VRING_BASE never.
type Device interface {
	// Features returns the feature bits of the device and its rings. The Backend adds bit 30 and
	// removes bits that this package cannot implement: LOG_ALL, ACCESS_PLATFORM, RING_PACKED.
	Features() uint64
	// ProtocolFeatures returns the protocol features to offer, a subset of SupportedProtocol.
	ProtocolFeatures() uint64
	// SetFeatures gets the acked features: a subset of Features, and bit 30 if the frontend acked it.
	// No queue is started during the call: the Backend stops started queues before and starts them
	// again after. QEMU sends the same features once per queue pair; while queues run, the Backend
	// does not pass such repetitions to the device.
	SetFeatures(f uint64) error
	// MaxQueues returns the number of virtqueues, at most 256: indices go from 0 to MaxQueues-1.
	MaxQueues() int
	// MTU sets the host MTU that the guest sees (NET_SET_MTU).
	MTU(mtu uint16) error
	// Status returns the device status.
	Status() uint8
	// SetStatus sets the device status. The Backend stops every queue before it sets status 0. QEMU
	// sends status 0 also when it only pauses the guest: the same driver may then go on with the
	// queues, so the device must keep the driver's configuration. If 0 is a reset, the Backend has
	// called Reset before.
	SetStatus(s uint8) error
	// GetConfig reads the configuration space from offset off into b, SetConfig writes b there.
	// They must not keep b.
	GetConfig(off uint32, b []byte) error
	SetConfig(off uint32, b []byte) error

	// StartQueue starts a queue, once the frontend has sent its addresses, size and kick. The device
	// processes the ring from the first kick on, or at once if v.Running. After an error the queue is
	// not started.
	StartQueue(v Vring) error
	// SetCall replaces the call eventfd of a started queue; fd belongs to the device, -1 is none.
	// The device fires it once, because an earlier call may have gone to the old eventfd.
	SetCall(index, fd int) error
	// SetErr replaces the error eventfd of a started queue, as SetCall does.
	SetErr(index, fd int) error
	// EnableQueue enables or disables a queue, started or not. Queues are disabled when a connection
	// begins. While a queue is started but disabled, a network device puts no packet into it, and
	// drops packets that the guest transmits on it.
	EnableQueue(index int, on bool) error
	// StopQueue stops a started queue. When it returns, the device touches neither the ring nor its
	// buffers, and base is where the ring goes on, for Vring.Base. The queue counts as stopped even
	// after an error.
	StopQueue(index int) (base uint32, err error)
	// Reset puts the device into its initial state (RESET_DEVICE, or status 0 from a frontend that did
	// not negotiate RESET_DEVICE). The Backend has stopped every queue before, and at RESET_DEVICE
	// also disabled it.
	Reset() error
	// The Backend calls MemoryChanged after a request of the frontend has changed the Space. The Backend
	// stopped the queues whose ring is gone or moved before the change; after this call it starts the
	// queues that lacked only their memory and have it now.
	MemoryChanged() error
	// The Backend calls Disconnected at the end of a connection. By then it has stopped and disabled
	// every queue; the memory is still mapped.
	Disconnected()
}

// QueueCounter is a Device whose answer to GET_QUEUE_NUM differs from MaxQueues. A network device
// is one: QEMU and DPDK take the answer as the number of queue pairs.
type QueueCounter interface {
	QueueNum() uint64
}

// Announcer is a Device that handles SEND_RARP: it broadcasts a RARP for mac, because the guest has
// moved here.
type Announcer interface {
	SendRARP(mac [6]byte) error
}

// FeatureNamer is a Device that names its type's feature bits, for logs and errors.
type FeatureNamer interface {
	FeatureNames() *[64]string
}
