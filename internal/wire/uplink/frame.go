package uplink

import (
	"vnic.dev/vnic/dma"
)

// Bounds of the buffers for frames, in each direction.
const (
	maxFrames  = 512
	minFrames  = 64
	frameBytes = 8 << 20 // most bytes of the buffers together, if these are more than minFrames
)

// frame is a buffer for a frame: an outgoing one behind room for the carrier's header, one from a tap behind its
// virtio_net_hdr.
type frame struct {
	b    []byte
	n    int    // bytes in use, header included
	flow uint32 // of an outgoing frame: a hash of its ports (flowOf)
	mem  *dma.Region
	lane *lane // of the sending port; nil: the frame is incoming, or the buffer is free
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
