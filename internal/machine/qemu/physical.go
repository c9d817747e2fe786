package qemu

import "os"

// Extent is a range of the guest's physical memory, and its file.
type Extent struct {
	Addr, Size uint64
	File       *os.File
	Off        uint64 // offset in File
}

// The memory map of QEMU's q35 (hw/i386/pc_q35.c, pc_q35_init): low memory ends at lowMemory, or at
// lowMemoryMore if the total is at least lowMemory; the rest begins at highMemory. If the guest's CPU is AMD's and the
// rest would exceed 1012 GiB, QEMU moves the rest (hw/i386/pc.c, pc_max_used_gpa), which is not supported.
const (
	lowMemory     = 0xb000_0000
	lowMemoryMore = 0x8000_0000
	highMemory    = 1 << 32
)

// Physical returns the physical addresses of the guest's RAM and of GPUs that are NUMA nodes.
func (m *Machine) Physical() []Extent { return m.physical }

// physical returns the guest's physical addresses of files, which are in the order of NUMA nodes. A file across the
// end of low memory has two extents.
func physical(files []Extent) (list []Extent) {
	total, low := uint64(0), uint64(lowMemory)
	for _, f := range files {
		total += f.Size
	}
	if total >= lowMemory {
		low = lowMemoryMore
	}
	addr := uint64(0)
	for _, f := range files {
		for f.Size > 0 {
			if addr == low {
				addr = highMemory
			}
			part := f
			if part.Addr = addr; addr < low {
				part.Size = min(f.Size, low-addr)
			}
			list = append(list, part)
			addr, f.Off, f.Size = addr+part.Size, f.Off+part.Size, f.Size-part.Size
		}
	}
	return list
}

// nodeFiles returns the files of RAM and of GPUs that are NUMA nodes, in the order of nodes; it sets no addresses.
func (c *Config) nodeFiles(ram []*os.File) (list []Extent) {
	for i, size := range c.ramSizes() {
		list = append(list, Extent{Size: size, File: ram[i]})
	}
	for _, g := range c.GPUs {
		if g.Node {
			list = append(list, Extent{Size: g.Size, File: g.File})
		}
	}
	return list
}
