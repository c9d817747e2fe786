package dma

import (
	"testing"

	"vnic.dev/vnic/internal/testkit"
)

func nodeAt(t *testing.T, s *Space, iova uint64) int {
	t.Helper()
	defer s.Leave(s.Enter())
	segs, err := s.Translate(nil, iova, 1, Read)
	testkit.OK(t, err)
	return segs[0].Node()
}

// The files of RAM get node numbers in the order of their addresses; a GPU's file and a file too many get none.
func TestNodesAreFilesInTheirOrder(t *testing.T) {
	leakFree(t)
	files := NewFiles()
	s := NewSpace("port", files)
	defer s.Close()
	const size = 1 << 20
	fds := []int{memfd(t, 2*size), memfd(t, size), memfd(t, size)} // memory of two nodes, and a GPU's
	gpu := testkit.Must(files.Open(fds[2], size))(t)
	defer gpu.Close()
	gpu.SetGPU(3)
	addrs := []uint64{0, 1 << 30, 2 << 30}
	add := func(iova uint64, fd int, off uint64) {
		testkit.OK(t, s.Add(Map{IOVA: iova, Size: size, FD: fd, FileOffset: off}))
	}
	s.SetNodes(2)
	add(addrs[2], fds[2], 0)
	add(addrs[1], fds[1], 0)
	testkit.Equal(t, "of one file", nodeAt(t, s, addrs[1]), -1)
	add(addrs[0], fds[0], 0)
	add(3<<30, fds[0], size) // the rest of the first node
	for i, want := range map[uint64]int{addrs[0]: 0, addrs[1]: 1, addrs[2]: -1, 3 << 30: 0} {
		testkit.Equal(t, "node", nodeAt(t, s, i), want)
	}
	add(4<<30, memfd(t, size), 0)
	testkit.Equal(t, "a third file", nodeAt(t, s, 4<<30), -1)
	testkit.Equal(t, "the second, beside a third", nodeAt(t, s, addrs[1]), 1)

	plain := NewSpace("other", files)
	defer plain.Close()
	fd := memfd(t, size)
	testkit.OK(t, plain.Add(Map{Size: size, FD: fd}))
	for _, n := range []int{-1, 0, 2, MaxNodes + 1} {
		plain.SetNodes(n)
		testkit.Equal(t, "without so many", nodeAt(t, plain, 0), -1)
	}
	plain.SetIOTLB(true)
	plain.SetNodes(1)
	testkit.Equal(t, "behind an IOMMU", nodeAt(t, plain, 0), -1)
	plain.SetIOTLB(false)
	plain.SetNodes(1)
	testkit.Equal(t, "one", nodeAt(t, plain, 0), 0)
	testkit.Equal(t, "of no region", Segment{}.Node(), -1)
}
