package gpumem

import (
	"errors"

	"vnic.dev/vnic/dma"
)

var errNotYet = errors.New("gpumem: not built yet")

// Options of a GPU.
type Options struct {
	Name string // of the memfd, for /proc; "vnic-gpuN" if empty
}

// GPU is the memory of one fake GPU.
type GPU struct{}

// NewGPU makes a GPU of size bytes, a multiple of 4 KiB.
func NewGPU(files *dma.Files, id int, size uint64, o Options) (*GPU, error) { return nil, errNotYet }

// ID returns the GPU's number.
func (g *GPU) ID() int { return 0 }

// Size returns the bytes of memory.
func (g *GPU) Size() uint64 { return 0 }

// FD returns the memfd, which stays the GPU's.
func (g *GPU) FD() int { return -1 }

// File returns the memory as a mapped file.
func (g *GPU) File() *dma.File { return nil }

// Region returns the whole memory as a region, for engines and bounces on the host.
func (g *GPU) Region() *dma.Region { return nil }

// Close lets go of the memory. Ports that use the GPU are closed before.
func (g *GPU) Close() error { return nil }
