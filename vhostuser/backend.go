package vhostuser

import (
	"context"
	"errors"
	"log/slog"
	"net"

	"vnic.dev/vnic/dma"
)

// Vring is a virtqueue as its frontend described it, ready to be started.
type Vring struct {
	Index int
	Size  uint16
	// Desc, Avail and Used are guest-physical addresses (IOVAs in the Space), translated from the frontend's own.
	Desc, Avail, Used uint64
	Base              uint16 // next available index to take (split rings)
	// Kick, Call and Err are descriptors, -1 for none. They belong to who receives the Vring.
	Kick, Call, Err int
}

// Device is a device type served by a Backend. Its methods are called from the goroutine of Serve, one at a time.
type Device interface {
	Features() uint64         // device and ring bits; the protocol adds bit 30
	ProtocolFeatures() uint64 // subset of what the package supports
	SetFeatures(f uint64) error
	MaxQueues() int
	MTU(mtu uint16) error    // NET_SET_MTU
	Status() uint8           // GET_STATUS
	SetStatus(s uint8) error // SET_STATUS; 0 is a reset
	GetConfig(off uint32, b []byte) error
	SetConfig(off uint32, b []byte) error
	StartQueue(v Vring) error
	SetCall(index, fd int) error
	SetErr(index, fd int) error
	EnableQueue(index int, on bool) error
	StopQueue(index int) (base uint16, err error)
	Reset() error
	MemoryChanged() error
	Disconnected()
}

var errTODO = errors.New("vhostuser: not written yet")

// Backend serves one Device over vhost-user connections, one after another.
type Backend struct {
	dev   Device
	space *dma.Space
	log   *slog.Logger
}

// NewBackend returns a Backend that gives dev the memory that a frontend shares, by way of space.
func NewBackend(dev Device, space *dma.Space, log *slog.Logger) *Backend {
	return &Backend{dev: dev, space: space, log: log}
}

// Serve speaks for the device on conn until the frontend hangs up or ctx ends.
func (b *Backend) Serve(ctx context.Context, conn *net.UnixConn) error { return errTODO }
