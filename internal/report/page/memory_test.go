package page

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"vnic.dev/vnic/internal/report/stat"
	"vnic.dev/vnic/internal/testkit"
)

func TestMemoryMap(t *testing.T) {
	piece := func(off, n uint64, state string, queue int) stat.MemoryRange {
		return stat.MemoryRange{Off: off, Len: n, State: state, Port: "B", Queue: queue}
	}
	for _, c := range []struct {
		name   string
		ranges []stat.MemoryRange
		cells  int
		want   Memory
	}{
		{"nothing", nil, 4, Memory{CellBytes: 16 << 10, Uses: []Use{}, Runs: [][3]int{}}},
		{"whole cells", []stat.MemoryRange{piece(0, 32<<10, "posted", 1), piece(48<<10, 16<<10, "send", -1)}, 4,
			Memory{CellBytes: 16 << 10, Uses: []Use{{State: "posted", Port: "B", Queue: 1, Bytes: 32 << 10},
				{State: "send", Port: "B", Queue: -1, Bytes: 16 << 10}}, Runs: [][3]int{{0, 2, 0}, {3, 1, 1}}}},
		{"a cell of several shows what has most",
			[]stat.MemoryRange{piece(0, 4096, "posted", 1), piece(4096, 8192, "held", 1),
				piece(60<<10, 4096, "posted", 1)}, 4,
			Memory{CellBytes: 16 << 10, Uses: []Use{{State: "posted", Port: "B", Queue: 1, Bytes: 8192},
				{State: "held", Port: "B", Queue: 1, Bytes: 8192}}, Runs: [][3]int{{0, 1, 1}, {3, 1, 0}}}},
		{"over a cell's end", []stat.MemoryRange{piece(8<<10, 40<<10, "held", 0)}, 4,
			Memory{CellBytes: 16 << 10, Uses: []Use{{State: "held", Port: "B", Queue: 0, Bytes: 40 << 10}},
				Runs: [][3]int{{0, 3, 0}}}},
		{"past the end", []stat.MemoryRange{piece(60<<10, 1<<20, "held", 0), piece(1<<30, 4096, "held", 0)}, 4,
			Memory{CellBytes: 16 << 10, Uses: []Use{{State: "held", Port: "B", Queue: 0, Bytes: 1<<20 + 4096}},
				Runs: [][3]int{{3, 1, 0}}}},
	} {
		c.want.GPU, c.want.Bytes = "gpu", 64<<10
		got := memoryMap(&stat.GPUMap{GPU: "gpu", Bytes: 64 << 10, Ranges: c.ranges}, c.cells, gpuUses)
		if d := cmp.Diff(c.want, got); d != "" {
			t.Errorf("%s:\n%s", c.name, d)
		}
	}
}

func TestUsesOfMemoryAreBounded(t *testing.T) {
	g := large(1).Memory[0]
	m := memoryMap(&g, gpuCells, gpuUses)
	var sum uint64
	for _, u := range m.Uses {
		sum += u.Bytes
	}
	testkit.Equal(t, "uses", len(m.Uses), gpuUses+1)
	testkit.Equal(t, "the last use", m.Uses[gpuUses].State, "other")
	testkit.Equal(t, "bytes", sum, 4000*4096)
	if len(m.Runs) > gpuCells {
		t.Errorf("%d runs", len(m.Runs))
	}
}
