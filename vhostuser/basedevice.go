package vhostuser

import (
	"errors"

	"vnic.dev/vnic/internal/scm"
)

// BaseDevice has Device methods for embedding, without MaxQueues, StartQueue, SetCall, EnableQueue and
// StopQueue. The zero value is ready.
type BaseDevice struct {
	status uint8
}

// Features offers only VIRTIO_F_VERSION_1.
func (*BaseDevice) Features() uint64 { return FeatureVersion1 }

// ProtocolFeatures offers SupportedProtocol except the configuration space, the MTU and RARP.
func (*BaseDevice) ProtocolFeatures() uint64 {
	return uint64(SupportedProtocol &^ (ProtocolConfig | ProtocolMTU | ProtocolRARP))
}

// SetFeatures accepts any features.
func (*BaseDevice) SetFeatures(uint64) error { return nil }

// Status returns the status that SetStatus stored, or 0 after Reset and Disconnected.
func (d *BaseDevice) Status() uint8 { return d.status }

// SetStatus stores the device status.
func (d *BaseDevice) SetStatus(s uint8) error {
	d.status = s
	return nil
}

var errNotOffered = errors.New("not offered by this device type")

// MTU returns an error.
func (*BaseDevice) MTU(uint16) error { return errNotOffered }

// GetConfig returns an error.
func (*BaseDevice) GetConfig(uint32, []byte) error { return errNotOffered }

// SetConfig returns an error.
func (*BaseDevice) SetConfig(uint32, []byte) error { return errNotOffered }

// SetErr closes fd, the new error eventfd, which it does not use.
func (*BaseDevice) SetErr(_, fd int) error {
	scm.Close(fd)
	return nil
}

// Reset sets the status to 0.
func (d *BaseDevice) Reset() error { return d.SetStatus(0) }

// MemoryChanged does nothing.
func (*BaseDevice) MemoryChanged() error { return nil }

// Disconnected sets the status to 0.
func (d *BaseDevice) Disconnected() { d.status = 0 }
