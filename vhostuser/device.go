package vhostuser

// Vring is a virtqueue as the frontend described it.
type Vring struct {
	Index int
	Size  uint16 // number of descriptors, 1 to 32768
	// Desc, Avail and Used are guest-physical addresses (IOVAs in the Space). Each part of the (split) ring lies
	// in one region; its alignment is not checked.
	Desc, Avail, Used uint64
	// Base is where the ring goes on, in the encoding of the ring's format (split: the next available index).
	Base uint32
	// Kick, Call and Err are non-blocking eventfds, -1 for none. The device owns them, even if StartQueue fails.
	Kick, Call, Err int
	// Running is set if the queue was started before and stopped only for a change: the device must process the ring at
	// once, while the queue is enabled, because it may have consumed a kick before.
	Running bool
}

// Device is a device type that a Backend serves. The goroutine of Serve calls its methods, one at a time; on
// that goroutine a fault in mapped memory is a panic (for dma.Recover). An error of a method makes the request
// fail, or is only logged. One that makes it fail, except GetConfig's, ends the connection if it wraps ErrBadMessage,
// ErrUnsupported or dma.ErrBlocked, or if both ends would disagree from then on (features, memory) and the frontend
// asked for no acknowledgement.
type Device interface {
	// Features returns the feature bits of the device and its rings, without FeatureProtocol.
	Features() uint64
	// ProtocolFeatures returns the protocol features to offer. The Backend offers no others than SupportedProtocol.
	ProtocolFeatures() uint64
	// SetFeatures gets the acked features: a subset of Features, and bit 30 if it was acked. All queues are stopped
	// then.
	SetFeatures(f uint64) error
	// MaxQueues returns the number of virtqueues, at most 256.
	MaxQueues() int
	// MTU sets the host MTU that the guest sees (NET_SET_MTU).
	MTU(mtu uint16) error
	// Status returns the device status.
	Status() uint8
	// SetStatus sets the device status. Queues are stopped before it sets 0; if RESET_DEVICE was not negotiated, Reset
	// is called before, too. QEMU sends status 0 also when it only pauses the guest, so at status 0 alone the device
	// must keep the driver's configuration.
	SetStatus(s uint8) error
	// GetConfig reads the configuration space from offset off into b, SetConfig writes b there.
	GetConfig(off uint32, b []byte) error
	SetConfig(off uint32, b []byte) error

	// StartQueue starts a queue. While the queue is enabled, the device processes the ring from the first kick on,
	// or at once if v.Running. After an error the queue is not started.
	StartQueue(v Vring) error
	// SetCall replaces the call eventfd of a started queue; the device owns fd, -1 is none. The device fires it
	// once.
	SetCall(index, fd int) error
	// SetErr replaces the error eventfd of a started queue; the device owns fd, -1 is none.
	SetErr(index, fd int) error
	// EnableQueue enables or disables a queue, started or not. Queues are disabled when a connection begins.
	EnableQueue(index int, on bool) error
	// StopQueue stops a started queue. When it returns, the device touches neither the ring nor its buffers, and
	// base is where the ring goes on.
	StopQueue(index int) (base uint32, err error)
	// Reset puts the device into its initial state. Its queues are stopped before.
	Reset() error
	// MemoryChanged is called after a request of the frontend has changed the Space.
	MemoryChanged() error
	// Disconnected is called at the end of a connection, with queues stopped and disabled, and the memory still
	// mapped.
	Disconnected()
}

// QueueCounter is a Device whose answer to GET_QUEUE_NUM is the result of QueueNum, not of MaxQueues.
type QueueCounter interface {
	QueueNum() uint64
}

// Announcer is a Device that, at SEND_RARP, broadcasts a RARP for the guest's MAC address.
type Announcer interface {
	SendRARP(mac [6]byte) error
}

// FeatureNamer is a Device that names its type's feature bits.
type FeatureNamer interface {
	FeatureNames() *[64]string
}
