package pci

import "fmt"

// Bits and sizes of a base address register for memory (PCI 3.0, 6.2.5.1).
const (
	barWide         = 2 << 1 // type: anywhere in 64 bits
	barPrefetchable = 1 << 3
	minBAR          = 16
	maxNarrow       = 1 << 31
)

// BAR is a memory range of the device. Size 0: none, or the BAR before it is Wide and takes this register too.
type BAR struct {
	Size         uint64 // in bytes: a power of two, at least 16, at most 2 GiB unless Wide
	Wide         bool   // 64-bit addresses: takes the next register too
	Prefetchable bool
}

// addBARs sets up the base address registers, or returns an error for a BAR with a bad size or without a free register
// for its upper half. When a driver writes ones, the address bits below the size stay 0.
func (c *Config) addBARs(bars *[6]BAR) error {
	for i := 0; i < len(bars); i++ {
		b := &bars[i]
		if b.Size == 0 {
			continue
		}
		if b.Size < minBAR || b.Size&(b.Size-1) != 0 || !b.Wide && b.Size > maxNarrow {
			return fmt.Errorf("BAR %d: size %#x is not a power of two, at least %d and for 32 bits at most %#x", i, b.Size,
				minBAR, uint64(maxNarrow))
		}
		var bits uint32
		if b.Prefetchable {
			bits |= barPrefetchable
		}
		mask := ^(b.Size - 1)
		reg := regBAR0 + 4*i
		le.PutUint32(c.mask[reg:], uint32(mask))
		if b.Wide {
			if i+1 == len(bars) || bars[i+1].Size != 0 {
				return fmt.Errorf("BAR %d: 64 bits, and BAR %d is not free for the upper half", i, i+1)
			}
			bits |= barWide
			le.PutUint32(c.mask[reg+4:], uint32(mask>>32))
			i++
		}
		le.PutUint32(c.data[reg:], bits)
	}
	return nil
}
