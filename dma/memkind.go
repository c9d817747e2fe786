package dma

import (
	"strconv"
	"sync/atomic"
)

// MemKind is the kind of memory of a byte.
type MemKind uint8

// The kinds of memory.
const (
	Private MemKind = iota // other memory of this process, such as a Go slice that a Copier reads or fills
	Host                   // guest RAM: a File that is no GPU's, or a buffer made as Host (NewBuffer)
	GPUFile                // GPU memory outside registered buffers
	GPU                    // GPU memory in a registered buffer (File.Register)
	Wire                   // buffers between NICs: of links, gateways and uplinks, and for frames that a NIC holds
	NumMemKinds
)

var memKindNames = [NumMemKinds]string{Private: "private", Host: "host", GPUFile: "gpu-file", GPU: "gpu", Wire: "wire"}

// String returns the kind's name, or "domain-" and a number for a value that is no kind.
func (d MemKind) String() string {
	if d < NumMemKinds {
		return memKindNames[d]
	}
	return "domain-" + strconv.Itoa(int(d))
}

// MaxGPUs is the number of possible GPU ids, from 0.
const MaxGPUs = 64

// Counts counts the bytes that one Copier has copied since the first call of Copier.Counts. Any goroutine may read it.
type Counts struct {
	bytes [NumMemKinds][NumMemKinds][MaxGPUs + 1]atomic.Uint64 // the last index is the GPU + 1, or 0 for none
	_     [64]byte                                             // keeps other data off the last cache line
}

// Bytes returns how many bytes were copied from memory of kind src to memory of kind dst; 0 if an argument is out of
// range. gpu is the id of the GPU that the destination belongs to, or else the source; -1: neither belongs to a GPU.
func (c *Counts) Bytes(src, dst MemKind, gpu int) uint64 {
	if src >= NumMemKinds || dst >= NumMemKinds || gpu < -1 || gpu >= MaxGPUs {
		return 0
	}
	return c.bytes[src][dst][gpu+1].Load()
}

// Total returns the sum of Bytes over all values of gpu.
func (c *Counts) Total(src, dst MemKind) uint64 {
	var n uint64
	for gpu := -1; gpu < MaxGPUs; gpu++ {
		n += c.Bytes(src, dst, gpu)
	}
	return n
}
