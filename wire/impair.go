package wire

import "time"

// Impairment is what a bad link does to the segments that pass it in one direction. What happens to the n-th segment
// depends on Seed and n alone, so the same sequence of segments meets the same fate again. A super-packet counts as its
// segments, and goes on as the runs that survive. The zero value does nothing.
type Impairment struct {
	Seed    uint64
	Loss    float64 // probability that a segment is lost
	Reorder float64 // probability that a segment is held back
	// ReorderDepth is how many later segments overtake one that is held back: 1 to ReorderDepth, 0 means 3.
	ReorderDepth int
	// HoldMax is how long a segment is held back if nothing overtakes it; 0 means 10 ms.
	HoldMax time.Duration
	// MaxPackets and MaxBytes bound the delay line; beyond them segments are not held back. 0 means 256 and 4 MiB.
	MaxPackets int
	MaxBytes   uint32
}
