package uplink

import (
	"vnic.dev/vnic/dma"
)

// Bounds of the buffers for frames, in each direction.
const (
	maxFrames  = 512
	minFrames  = 64
	frameBytes = 8 << 20 // most bytes of all buffers together, if these are more than minFrames
)

// frame is a buffer with a frame in it, an outgoing one behind room for the carrier's header.
type frame struct {
	b    []byte
	n    int    // bytes, the room included
	flow uint32 // of an outgoing frame: the same for all frames of a flow
	mem  *dma.Region
	lane *lane // of the sending port
}

// newFrames makes buffers of n bytes each, and returns the queue of free ones.
func newFrames(n int) (free chan *frame) {
	count := min(maxFrames, max(minFrames, frameBytes/n))
	free = make(chan *frame, count)
	slab := make([]byte, count*n)
	for i := range count {
		b := slab[i*n : (i+1)*n : (i+1)*n]
		free <- &frame{b: b, mem: dma.NewBuffer(b, dma.Wire)}
	}
	return free
}
