package driver

import (
	"errors"
	"net"
)

var (
	// ErrBroken means that the device broke a rule of virtio. The NIC stops, or does not start.
	ErrBroken = errors.New("device breaks virtio's rules")
	// ErrFeature means that the device or the driver lacks a feature that is needed, or that the device refuses the
	// features that the driver has chosen.
	ErrFeature = errors.New("device lacks a feature")
	// ErrClosed means that the NIC was closed.
	ErrClosed = net.ErrClosed
)
