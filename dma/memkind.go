package dma

import (
	"strconv"
	"sync/atomic"
)

// MemKind says what kind of memory a byte lies in. It comes from the file behind the byte, never from an address.
type MemKind uint8

// The kinds of memory.
const (
	Private     MemKind = iota // a slice of the caller's own (header copies): neither guest nor GPU memory
	Host                       // guest RAM, or process memory that stands for host RAM (bounce)
	GPUFile                    // a GPU's file, outside every registered buffer
	GPU                        // inside a registered GPU buffer: the only one that counts as device memory
	Wire                       // buffers of the wire (delay line, gateway)
	NumMemKinds                // how many there are
)

var memKindNames = [NumMemKinds]string{Private: "private", Host: "host", GPUFile: "gpu-file", GPU: "gpu", Wire: "wire"}

// String returns the name as counters spell it.
func (d MemKind) String() string {
	if d < NumMemKinds {
		return memKindNames[d]
	}
	return "domain-" + strconv.Itoa(int(d))
}

// MaxGPUs is how many GPUs are told apart by Counts; GPU ids are below it.
const MaxGPUs = 64

// Counts holds the bytes that one Copier moved. The copier's goroutine writes, anyone reads.
type Counts struct {
	bytes [NumMemKinds][NumMemKinds][MaxGPUs + 1]atomic.Uint64 // last index: gpu + 1, 0 = none
	_     [64]byte                                             // keeps the next object off the last line
}

// Bytes returns how many bytes went from src to dst. gpu is the GPU of the destination if that is GPU memory, else the
// GPU of the source; -1 asks for the bytes that touched no GPU. An index out of range counts nothing.
func (c *Counts) Bytes(src, dst MemKind, gpu int) uint64 {
	if src >= NumMemKinds || dst >= NumMemKinds || gpu < -1 || gpu >= MaxGPUs {
		return 0
	}
	return c.bytes[src][dst][gpu+1].Load()
}

// Total returns how many bytes went from src to dst, whatever the GPU.
func (c *Counts) Total(src, dst MemKind) uint64 {
	var n uint64
	for gpu := -1; gpu < MaxGPUs; gpu++ {
		n += c.Bytes(src, dst, gpu)
	}
	return n
}
