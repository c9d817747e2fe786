package serve

// What a serving process and its broker may need of memory, at the most. The program and its garbage
// are few MiB; ports are what TestManyPorts holds; a gateway has flows with buffers.
const (
	maxProgram = 128 << 20
	maxGateway = 512 << 20
	maxPort    = 2 << 20
)

// MemoryMax is what a control group for these options needs that counts all: also the GPUs' memory, and
// what NICs write first of guests' RAM, each of which has so much of it.
func (o *Options) MemoryMax(ram uint64) uint64 {
	n := uint64(maxProgram)
	if !o.Off() {
		n += maxGateway
	}
	if o.Lab != nil {
		return n + uint64(len(o.Paths))*maxPort + uint64(len(o.Lab.Guests))*ram + o.Lab.Memory(false)
	}
	return n + uint64(len(o.Paths)+len(o.FDs))*(maxPort+o.GPUMemory+ram)
}
