package vhostuser

// Vring is a virtqueue as the frontend described it.
type Vring struct {
	Index int
	Size  uint16 // number of descriptors, 1 to 32768
	// Desc, Avail and Used are guest-physical addresses (IOVAs in the Space). Each part of the (split) ring lies
	// in one region; its alignment is not checked here.
	Desc, Avail, Used uint64
	// Base is where the ring goes on, in the encoding of the ring's format (split: the next available index).
	Base uint32
	// Kick, Call and Err are non-blocking eventfds, -1 for none. The device owns them from the call of StartQueue
	// on, even if StartQueue returns an error.
	Kick, Call, Err int
	// Running is set if the queue ran before, and was stopped only for a change. Then the device must process the
	// ring at once, because it may have consumed a kick before.
	Running bool
}

// Device is a device type that a Backend serves. The goroutine of Serve calls its methods, one at a time; on
// that goroutine a fault in mapped memory is a panic (for dma.Recover). An error makes the request fail; if
// both ends would disagree from then on (features, memory) and the frontend asked for no acknowledgement, it
// ends the connection.
type Device interface {
	// Features returns the feature bits of the device and its rings. The Backend adds FeatureProtocol, and removes
	// bits that it cannot implement.
	Features() uint64
	// ProtocolFeatures returns the protocol features to offer, a subset of SupportedProtocol.
	ProtocolFeatures() uint64
	// SetFeatures gets the acked features: a subset of Features, and bit 30 if the frontend acked it. No queue is
	// started during the call.
	SetFeatures(f uint64) error
	// MaxQueues returns the number of virtqueues, at most 256.
	MaxQueues() int
	// MTU sets the host MTU that the guest sees (NET_SET_MTU).
	MTU(mtu uint16) error
	// Status returns the device status.
	Status() uint8
	// SetStatus sets the device status. The queues are stopped before it sets 0. QEMU sends status 0 also when it
	// only pauses the guest, so the device must keep the driver's configuration. If 0 is a reset, Reset was called
	// before.
	SetStatus(s uint8) error
	// GetConfig reads the configuration space from offset off into b, SetConfig writes b there.
	// They must not keep b.
	GetConfig(off uint32, b []byte) error
	SetConfig(off uint32, b []byte) error

	// StartQueue starts a queue. The device processes the ring from the first kick on, or at once if v.Running.
	// After an error the queue is not started.
	StartQueue(v Vring) error
	// SetCall replaces the call eventfd of a started queue; the device owns fd, -1 is none. The device fires it
	// once, because an earlier call may have gone to the old eventfd.
	SetCall(index, fd int) error
	// SetErr replaces the error eventfd of a started queue; the device owns fd.
	SetErr(index, fd int) error
	// EnableQueue enables or disables a queue, started or not. Queues are disabled when a connection begins.
	EnableQueue(index int, on bool) error
	// StopQueue stops a started queue. When it returns, the device touches neither the ring nor its buffers, and
	// base is where the ring goes on. The queue counts as stopped even after an error.
	StopQueue(index int) (base uint32, err error)
	// Reset puts the device into its initial state (RESET_DEVICE, or status 0 from a frontend that did not
	// negotiate RESET_DEVICE). The queues are stopped before.
	Reset() error
	// MemoryChanged is called after a request of the frontend has changed the Space. Queues whose ring is gone or
	// moved are stopped before, and may start again after it.
	MemoryChanged() error
	// Disconnected is called at the end of a connection. The queues are stopped and disabled by then; the memory
	// is still mapped.
	Disconnected()
}

// QueueCounter is a Device whose answer to GET_QUEUE_NUM differs from MaxQueues. QEMU and DPDK take a network
// device's answer as the number of queue pairs.
type QueueCounter interface {
	QueueNum() uint64
}

// Announcer is a Device that handles SEND_RARP: it broadcasts a RARP for mac.
type Announcer interface {
	SendRARP(mac [6]byte) error
}

// FeatureNamer is a Device that names its type's feature bits, for logs and errors.
type FeatureNamer interface {
	FeatureNames() *[64]string
}
