package dma

import "slices"

// MaxNodes is the largest number of a guest's NUMA nodes that SetNodes accepts.
const MaxNodes = 8

const nodeRegions = 256

// SetNodes declares that the guest has n NUMA nodes with RAM: the RAM of each node is one file, and the nodes
// are numbered in the order of the files' lowest addresses, as in QEMU. If the space then, or after a later
// change, maps exactly n files, GPUs' not counted, these files get their nodes (Segment.Node), and keep them when
// more files are mapped. No file gets a node while the space has more than 256 regions, or is behind an IOMMU
// (SetIOTLB). A negative n and one above MaxNodes mean 0: no file gets a node.
func (s *Space) SetNodes(n int) {
	if n < 0 || n > MaxNodes {
		n = 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.nodes.Store(int32(n))
	s.tellNodes()
}

// Nodes returns the number of nodes that SetNodes has set; 0: none.
func (s *Space) Nodes() int { return int(s.nodes.Load()) }

// tellNodes gives the mapped files their nodes if the conditions of SetNodes hold. The caller holds mu.
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
