package driver

import (
	"errors"
	"net"
)

var (
	// ErrBroken means that the device broke a rule of virtio. The NIC has stopped, or did not start.
	ErrBroken = errors.New("device breaks virtio's rules")
	// ErrFeature means that the device lacks a feature that the call or the driver needs.
	ErrFeature = errors.New("device lacks a feature")
	// ErrClosed means that the NIC was closed.
	ErrClosed = net.ErrClosed
)
