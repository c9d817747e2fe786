// Package devmemtool is `devmem`, netcat for device memory TCP inside vnic's guests, like ncdevmem for
// Linux's own devmem sockets (tools/testing/selftests/drivers/net/hw/ncdevmem.c). A flag that has the same
// meaning in both has ncdevmem's name.
//
// Only open.go, and tests, depend on package stack and on how a device is opened.
//
// It differs from ncdevmem where ncdevmem hides failures: with -v one wrong byte is a failure, bytes in host memory
// are validated at their position in the stream, and receiving nothing is a failure.
package devmemtool

import (
	"context"
	"io"
	"net/netip"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/driver"
)

// Name is the applet's name.
const Name = "devmem"

// GPU is a GPU that a device reaches.
type GPU = driver.GPUInfo

// Device is an opened device.
type Device struct {
	devmem.Device
	Name   string
	Queues int
	// Shared: RSS may spread over all queues, so that queues to be bound must be removed from it.
	Shared bool
	GPUs   []GPU
	Memory devmem.Memory // works on the memory of all GPUs
}

// Request configures which device to open.
type Request struct {
	Interface string       // PCI address, or "virtio" for the only device; or the name of a network interface
	Address   netip.Prefix // the tool's own address
	// Unguarded: with a network interface, no process unregisters the buffers at the NIC if the program is killed
	// (kernelnic.GuardName).
	Unguarded bool
}

// Opener opens a device.
type Opener func(ctx context.Context, r Request) (*Device, error)

// Stdio has the streams of the tool: received payload (without -v), help and the success of recv -v go to Out, other
// messages to Err. In has the payload to send (without -b).
type Stdio struct {
	In       io.Reader
	Out, Err io.Writer
}

const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
)
