package qemu

import "os"

// Extent is a part of the guest's physical memory, and where in a file it lies.
type Extent struct {
	Addr, Size uint64
	File       *os.File
	Off        uint64 // in File
}

// Where QEMU's q35 has memory (hw/i386/pc_q35.c, pc_q35_init): up to a bound below 4 GiB, which is lower where there is
// more than that, so that pages of 1 GiB stay whole, and the rest from 4 GiB on. QEMU moves the rest up on a host of
// AMD's where it would go past 1012 GiB (hw/i386/pc.c, pc_max_used_gpa), which is not served here.
const (
	lowMemory     = 0xb000_0000
	lowMemoryMore = 0x8000_0000
	highMemory    = 1 << 32
)

// Physical is where the guest's RAM and those GPUs are that are NUMA nodes, by physical address. The files are those of
// RAM and of the configuration.
func (m *Machine) Physical() []Extent { return m.physical }

// physical lays out files, in the order of their nodes.
func physical(files []Extent) (list []Extent) {
	total, low := uint64(0), uint64(lowMemory)
	for _, f := range files {
		total += f.Size
	}
	if total >= lowMemory {
		low = lowMemoryMore
	}
	at := uint64(0)
	for _, f := range files {
		for f.Size > 0 {
			if at == low {
				at = highMemory
			}
			part := f
			if part.Addr = at; at < low {
				part.Size = min(f.Size, low-at)
			}
			list = append(list, part)
			at, f.Off, f.Size = at+part.Size, f.Off+part.Size, f.Size-part.Size
		}
	}
	return list
}

// nodeFiles are the files of RAM and GPUs that are nodes, in the order of the nodes.
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
