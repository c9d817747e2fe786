package vfiouser

import "errors"

// ErrBadMessage means that the client sent something that no client may send, or another major version.
var ErrBadMessage = errors.New("bad vfio-user message")

// ErrBusy is the error of Serve while another Serve of the same Server runs.
var ErrBusy = errors.New("the device is being served on another connection")
