package driver

import (
	"errors"
	"net"
)

var (
	// ErrBroken says that the device broke a rule of virtio: the NIC has stopped.
	ErrBroken = errors.New("device breaks virtio's rules")
	// ErrFeature says that the device lacks a feature that the call, or the driver, cannot do without.
	ErrFeature = errors.New("device lacks a feature")
	// ErrClosed says that the NIC was closed.
	ErrClosed = net.ErrClosed
)
