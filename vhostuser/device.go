package vhostuser

// Vring is a virtqueue as its frontend described it, ready to be started.
type Vring struct {
	Index int
	Size  uint16 // number of descriptors, 1 to 32768
	// Desc, Avail and Used are guest-physical addresses (IOVAs in the Space), translated from the frontend's own. Each
	// part of the (split) ring lies in one region; its alignment is not checked here.
	Desc, Avail, Used uint64
	// Base says where the ring goes on, in the encoding of the ring (of a split one: the next available index). It is
	// passed through as it is.
	Base uint32
	// Kick, Call and Err are eventfds, non-blocking, -1 for none (for Kick: poll the ring). They are the device's from
	// the call on, even if it returns an error: it closes them when the queue stops or another takes their place.
	Kick, Call, Err int
	// Running says that the queue ran before and was stopped only to change something about it (an address, the kick,
	// the memory behind it): look at the ring at once, its first kick has been taken.
	Running bool
}

// Device is a device type served by a Backend. Its methods are called from the goroutine of Serve,
// one at a time, on which a fault in mapped memory is a panic (for dma.Recover). An error is
// reported to the frontend if it asked (REPLY_ACK) and logged; where the two ends would disagree
// without the report (features, memory), it ends the connection.
type Device interface {
	// Features returns the feature bits of the device and its rings. The Backend adds bit 30 and takes away what this
	// package does not carry: LOG_ALL, ACCESS_PLATFORM, RING_PACKED.
	Features() uint64
	// ProtocolFeatures returns what to offer, among SupportedProtocol.
	ProtocolFeatures() uint64
	// SetFeatures is called with a subset of Features, and with bit 30 as the frontend acked it. No queue is started
	// then: those that were are stopped before and started again after. QEMU sends the same features once per queue pair;
	// repetitions while queues run are not passed on.
	SetFeatures(f uint64) error
	// MaxQueues returns how many virtqueues there are, at most 256: indices go from 0 to MaxQueues-1.
	MaxQueues() int
	// MTU is the host MTU that the guest sees (NET_SET_MTU).
	MTU(mtu uint16) error
	// Status returns the device status.
	Status() uint8
	// SetStatus sets the device status. At 0 every queue has been stopped, and the guest may be paused: the same driver
	// may go on with the queues, and what it has set up stays. If 0 is a reset Reset was called before.
	SetStatus(s uint8) error
	// GetConfig fills b from offset off of the configuration space, SetConfig writes it. b is valid until they return.
	GetConfig(off uint32, b []byte) error
	SetConfig(off uint32, b []byte) error

	// StartQueue gives a queue to the device: addresses, size, base and kick are known. The ring itself starts at its
	// first kick, or at once if v.Running. After an error the queue is not started.
	StartQueue(v Vring) error
	// SetCall changes the call eventfd of a started queue; fd is the device's, -1 is none. The device fires it once, as
	// a call that was due may have gone to the old one.
	SetCall(index, fd int) error
	// SetErr changes the error eventfd of a started queue, as SetCall.
	SetErr(index, fd int) error
	// EnableQueue enables or disables a queue, started or not. Queues are disabled when a connection begins. A queue
	// that is started and disabled receives nothing, and what it transmits is taken and dropped.
	EnableQueue(index int, on bool) error
	// StopQueue stops a started queue. When it returns, nothing of the device touches the ring or its buffers, and base
	// is where the ring goes on, for Vring.Base. The queue counts as stopped even if there is an error.
	StopQueue(index int) (base uint32, err error)
	// Reset takes the device to its initial state (RESET_DEVICE, or status 0 of a frontend that did not negotiate that).
	// Every queue has been stopped, and at RESET_DEVICE disabled.
	Reset() error
	// MemoryChanged is called after the Space changed. Queues whose ring is gone, or at another address, have been
	// stopped before the change and are started again after this call, if their ring is there.
	MemoryChanged() error
	// Disconnected ends the connection: every queue is stopped and disabled, the memory is still there.
	Disconnected()
}

// QueueCounter is a Device that answers GET_QUEUE_NUM with something other than MaxQueues. A network device does: QEMU
// and DPDK take the answer as the number of queue pairs.
type QueueCounter interface {
	QueueNum() uint64
}

// Announcer is a Device that serves SEND_RARP: broadcast a RARP for mac, as the guest has moved here.
type Announcer interface {
	SendRARP(mac [6]byte) error
}

// FeatureNamer is a Device that names the feature bits of its type, for logs and errors.
type FeatureNamer interface {
	FeatureNames() *[64]string
}
