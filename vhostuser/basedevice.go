package vhostuser

import (
	"errors"

	"vnic.dev/vnic/internal/scm"
)

// BaseDevice has the Device methods that most types implement alike, for embedding: only
// VIRTIO_F_VERSION_1, the device status, no configuration space, no MTU, no error eventfds, nothing
// to do when the memory has changed. The embedding type adds MaxQueues, StartQueue, SetCall,
// EnableQueue and StopQueue (a Worker helps), and replaces methods of BaseDevice as it needs. The
// zero value is ready.
type BaseDevice struct {
	status uint8
}

// Features offers only VIRTIO_F_VERSION_1: no event index, no indirect descriptors.
func (*BaseDevice) Features() uint64 { return FeatureVersion1 }

// ProtocolFeatures offers all that a Backend supports except the configuration space, the MTU and
// RARP.
func (*BaseDevice) ProtocolFeatures() uint64 {
	return uint64(SupportedProtocol &^ (ProtocolConfig | ProtocolMTU | ProtocolRARP))
}

// SetFeatures accepts any features.
func (*BaseDevice) SetFeatures(uint64) error { return nil }

// Status returns the status that SetStatus stored.
func (d *BaseDevice) Status() uint8 { return d.status }

// SetStatus stores the device status.
func (d *BaseDevice) SetStatus(s uint8) error {
	d.status = s
	return nil
}

// errNotOffered is the answer to a request whose protocol feature is not offered.
var errNotOffered = errors.New("not offered by this device type")

// MTU refuses: the protocol feature is not offered.
func (*BaseDevice) MTU(uint16) error { return errNotOffered }

// GetConfig refuses: the protocol feature is not offered.
func (*BaseDevice) GetConfig(uint32, []byte) error { return errNotOffered }

// SetConfig refuses: the protocol feature is not offered.
func (*BaseDevice) SetConfig(uint32, []byte) error { return errNotOffered }

// SetErr closes the error eventfd, which BaseDevice does not use.
func (*BaseDevice) SetErr(_, fd int) error {
	scm.Close(fd)
	return nil
}

// Reset sets the status to 0.
func (d *BaseDevice) Reset() error { return d.SetStatus(0) }

// MemoryChanged does nothing: the Backend has already stopped the queues whose rings moved.
func (*BaseDevice) MemoryChanged() error { return nil }

// Disconnected sets the status to 0.
func (d *BaseDevice) Disconnected() { d.status = 0 }
