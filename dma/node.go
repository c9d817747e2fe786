package dma

// MaxNodes is how many NUMA nodes of a guest are told apart.
const MaxNodes = 8

// nodeRegions is how many regions a space has at most in which nodes are looked for: RAM is a few.
const nodeRegions = 256

// SetNodes says that the guest has n NUMA nodes with RAM, each a file of its own, in the order of their addresses, as
// QEMU lays them out. From when as many files are mapped that are no GPU's, segments in them have a Node; with any
// other number, or with addresses that an IOMMU translates (SetIOTLB), nothing is known. n above MaxNodes is as 0.
func (s *Space) SetNodes(n int) {
	if n < 0 || n > MaxNodes {
		n = 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.nodes.Store(int32(n))
	s.tellNodes()
}

// Nodes is what SetNodes said, 0 at first.
func (s *Space) Nodes() int { return int(s.nodes.Load()) }

// tellNodes notes of files which node's RAM they are, once all are there. Under mu.
func (s *Space) tellNodes() {
	n := int(s.nodes.Load())
	if n == 0 || s.count > nodeRegions || s.iotlb.Load() {
		return
	}
	var files [MaxNodes]*File
	found := 0
	s.table.Load().walk(0, func(r *Region) bool {
		f := r.file
		if f == nil || f.GPU() >= 0 {
			return true
		}
		for _, known := range files[:min(found, MaxNodes)] {
			if known == f {
				return true
			}
		}
		if found < MaxNodes {
			files[found] = f
		}
		found++
		return found <= n
	})
	if found != n {
		return
	}
	for i, f := range files[:n] {
		f.node.Store(int32(i + 1))
	}
}
