package serve

// bounds of memory, in bytes; TestManyPorts checks maxPort
const (
	maxProgram = 128 << 20
	maxGateway = 512 << 20
	maxPort    = 2 << 20
)

// MemoryMax returns the memory limit, in bytes, for the control group of a vnic serve with these options. Each guest
// has ram bytes, which the kernel charges to the control group if a NIC is the first to write to them.
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
