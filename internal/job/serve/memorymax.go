package serve

// What a serving process and its broker may need of memory, at the most. The program and its garbage
// are few MiB; ports are what TestManyPorts holds; a gateway has flows with buffers.
const (
	maxProgram = 128 << 20
	maxGateway = 512 << 20
	maxPort    = 2 << 20
)

// MemoryMax is the memory limit, in bytes, that a control group needs for these options. Each guest
// has ram bytes, which count where a NIC is the first to write to them; GPUs' memory counts, too.
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
