package dma

import (
	"strconv"
	"sync/atomic"
)

// MemKind is the kind of memory of a byte. In a file it depends on the file and the byte's offset, not on its
// address.
type MemKind uint8

// The kinds of memory.
const (
	Private MemKind = iota // a private slice of the caller: neither guest nor GPU memory
	Host                   // guest RAM, or process memory in the role of host RAM
	GPUFile                // a GPU's file, outside registered buffers
	GPU                    // inside a registered GPU buffer: only this counts as device memory
	Wire                   // buffers of vnic's links between NICs
	NumMemKinds
)

var memKindNames = [NumMemKinds]string{Private: "private", Host: "host", GPUFile: "gpu-file", GPU: "gpu", Wire: "wire"}

// String returns the name that counters use.
func (d MemKind) String() string {
	if d < NumMemKinds {
		return memKindNames[d]
	}
	return "domain-" + strconv.Itoa(int(d))
}

// MaxGPUs is how many GPUs Counts can distinguish: GPU ids are less.
const MaxGPUs = 64

// Counts holds the numbers of bytes that one Copier copied. The copier's goroutine writes; any goroutine reads.
type Counts struct {
	bytes [NumMemKinds][NumMemKinds][MaxGPUs + 1]atomic.Uint64 // last index: gpu + 1; 0: no GPU
	_     [64]byte                                             // no other object shares the last cache line
}

// Bytes returns how many bytes the Copier has copied from src to dst. gpu is the destination's GPU if dst is
// GPU memory, else the source's; -1: none. For an index out of range the result is 0.
func (c *Counts) Bytes(src, dst MemKind, gpu int) uint64 {
	if src >= NumMemKinds || dst >= NumMemKinds || gpu < -1 || gpu >= MaxGPUs {
		return 0
	}
	return c.bytes[src][dst][gpu+1].Load()
}

// Total returns how many bytes the Copier has copied from src to dst, with any GPU or none.
func (c *Counts) Total(src, dst MemKind) uint64 {
	var n uint64
	for gpu := -1; gpu < MaxGPUs; gpu++ {
		n += c.Bytes(src, dst, gpu)
	}
	return n
}
