package vhostuser

import "errors"

var (
	// ErrBadMessage means that the peer broke the protocol.
	ErrBadMessage = errors.New("bad vhost-user message")
	// ErrUnsupported means that the frontend sent a request that is unknown, not implemented, or
	// not offered.
	ErrUnsupported = errors.New("unsupported vhost-user request")
	// ErrMemory means that a memory region cannot be added or removed, or that a ring's address lies in none.
	ErrMemory = errors.New("guest memory cannot be used")
	// ErrRefused means that the backend answered a request with a failure.
	ErrRefused = errors.New("refused by the vhost-user backend")
	// ErrBusy is the error of a Serve that starts while the Backend serves another connection.
	ErrBusy = errors.New("vhost-user backend serves another connection")
)
