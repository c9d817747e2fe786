package dma

import (
	"strconv"
	"sync/atomic"
)

// MemKind is the kind of memory of a byte.
type MemKind uint8

// The kinds of memory.
const (
	Private MemKind = iota // other memory of this process, such as a private slice
	Host                   // guest RAM, or memory that plays its role
	GPUFile                // GPU memory outside registered buffers
	GPU                    // GPU memory in a registered buffer; it counts as device memory
	Wire                   // buffers between NICs: of links, gateways and uplinks
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

// MaxGPUs is the number of possible GPU ids, from 0.
const MaxGPUs = 64

// Counts counts what one Copier copied. Any goroutine may read it.
type Counts struct {
	bytes [NumMemKinds][NumMemKinds][MaxGPUs + 1]atomic.Uint64 // the last index is the GPU + 1, or 0 for none
	_     [64]byte                                             // keeps other data off the last cache line
}

// Bytes returns how many bytes were copied from src to dst. gpu is the GPU of dst if dst is GPU memory, else of
// src; -1: none.
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
