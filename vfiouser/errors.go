package vfiouser

import "errors"

// ErrBadMessage means that the client sent something for which the connection ends: a wrong header, too many
// descriptors in a message, a command before VERSION, or a VERSION with bad data or another major version.
var ErrBadMessage = errors.New("bad vfio-user message")

// ErrBusy is the error of Serve while another Serve of the same Server runs.
var ErrBusy = errors.New("the device is being served on another connection")
