package dma

import "slices"

// MaxNodes bounds the NUMA nodes of a guest.
const MaxNodes = 8

const nodeRegions = 256

// SetNodes declares that the guest has n NUMA nodes with RAM, each a file, in the order of their addresses, as
// in QEMU. Once the space maps exactly n files that are not a GPU's, segments have a Node, except with more
// than 256 regions, or behind an IOMMU (SetIOTLB). A negative n and one above MaxNodes mean 0.
func (s *Space) SetNodes(n int) {
	if n < 0 || n > MaxNodes {
		n = 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.nodes.Store(int32(n))
	s.tellNodes()
}

// Nodes returns the number that SetNodes has set.
func (s *Space) Nodes() int { return int(s.nodes.Load()) }

// tellNodes gives the files their nodes once exactly that many are mapped. The caller holds mu.
func (s *Space) tellNodes() {
	n := int(s.nodes.Load())
	if n == 0 || s.count > nodeRegions || s.iotlb.Load() {
		return
	}
	var files [MaxNodes]*File
	found := 0
	s.table.Load().walk(0, func(r *Region) bool {
		f := r.file
		if f == nil || f.GPU() >= 0 || slices.Contains(files[:min(found, MaxNodes)], f) {
			return true
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
