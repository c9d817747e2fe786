// Package devmemtool is `devmem`, netcat for device memory TCP inside vnic's guests: what ncdevmem is for Linux's own
// devmem sockets (tools/testing/selftests/drivers/net/hw/ncdevmem.c), with its flags where they mean the same.
//
// It is written against package devmem; only what opens a device (open.go) knows which device and stack that is. The
// tool owns its device while it runs: binds, steers, moves bytes, and leaves nothing behind.
//
// It differs from ncdevmem where that hides failures: one wrong byte is one too many, bytes in host
// memory are validated in their place, and nothing received is no success when a pattern was asked
// for.
package devmemtool

import (
	"context"
	"io"
	"net/netip"

	"vnic.dev/vnic/devmem"
)

// Name is the applet's; the image needs a link of this name (guestimages.Options.Applets).
const Name = "devmem"

// GPU is a GPU that a device reaches.
type GPU struct {
	ID   int
	Size uint64
}

// Device is an opened device.
type Device struct {
	devmem.Device
	Name   string
	Queues int // receive queues
	// Shared says that RSS spreads over all of them, and those that are to be bound must be taken out of it.
	Shared bool
	GPUs   []GPU
	Memory devmem.Memory // of all GPUs: the tool's own bytes go to GPU memory, and out of it, by it
}

// Request says which device to open, and as whom.
type Request struct {
	Interface string       // PCI address, or "virtio": the only one; else the name of a network interface
	Address   netip.Prefix // ours
	// Unguarded: nothing is cleaned up at the NIC when the program is killed. Programs that cannot be
	// started as kernelnic.GuardName have it so.
	Unguarded bool
}

// Opener opens a device.
type Opener func(ctx context.Context, r Request) (*Device, error)

// Stdio is what the tool reads and writes: payload on Out, all else on Err.
type Stdio struct {
	In       io.Reader
	Out, Err io.Writer
}

// Exit statuses.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
)
