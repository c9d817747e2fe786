package vhostuser

import (
	"errors"

	"vnic.dev/vnic/internal/scm"
)

// BaseDevice answers what devices of all types answer the same way, for a Device that embeds it: VIRTIO_F_VERSION_1
// alone, the device status, no configuration space, no MTU, no error eventfds, nothing to do when the memory has
// changed. What is left to the type is MaxQueues, StartQueue, SetCall, EnableQueue and StopQueue, for which a Worker
// serves; it replaces of these methods what it has more of. The zero value is ready.
type BaseDevice struct {
	status uint8
}

// Features offers VIRTIO_F_VERSION_1 alone: no event index, no indirect descriptors.
func (*BaseDevice) Features() uint64 { return FeatureVersion1 }

// ProtocolFeatures offers all that a Backend supports but the configuration space, the MTU and
// RARP.
func (*BaseDevice) ProtocolFeatures() uint64 {
	return uint64(SupportedProtocol &^ (ProtocolConfig | ProtocolMTU | ProtocolRARP))
}

// SetFeatures accepts what Features offered.
func (*BaseDevice) SetFeatures(uint64) error { return nil }

// Status returns what SetStatus got.
func (d *BaseDevice) Status() uint8 { return d.status }

// SetStatus keeps the device status.
func (d *BaseDevice) SetStatus(s uint8) error {
	d.status = s
	return nil
}

// errNotOffered answers what a frontend may send only if its protocol feature was offered.
var errNotOffered = errors.New("not offered by this device type")

// MTU refuses: the protocol feature is not offered.
func (*BaseDevice) MTU(uint16) error { return errNotOffered }

// GetConfig refuses: the protocol feature is not offered.
func (*BaseDevice) GetConfig(uint32, []byte) error { return errNotOffered }

// SetConfig refuses: the protocol feature is not offered.
func (*BaseDevice) SetConfig(uint32, []byte) error { return errNotOffered }

// SetErr closes the error eventfd: a queue that stops is told of in the log alone.
func (*BaseDevice) SetErr(_, fd int) error {
	scm.Close(fd)
	return nil
}

// Reset forgets the status.
func (d *BaseDevice) Reset() error { return d.SetStatus(0) }

// MemoryChanged does nothing: queues whose ring has moved were stopped.
func (*BaseDevice) MemoryChanged() error { return nil }

// Disconnected forgets the status.
func (d *BaseDevice) Disconnected() { d.status = 0 }
