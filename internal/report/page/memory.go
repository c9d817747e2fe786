package page

import (
	"cmp"
	"maps"
	"slices"

	"vnic.dev/vnic/internal/report/stat"
)

// Bounds of the maps of GPUs' memory.
const (
	maxCells  = 8192 // of all GPUs' maps together
	gpuCells  = 1024 // of one GPU's map
	leastCell = 4096 // bytes of the smallest cell
	maxUses   = 1024 // of all GPUs, without the merged ones; orderUses merges the smallest uses of a GPU
	gpuUses   = 64   // of one GPU, without the merged one
)

// Memory is a map of a GPU's memory, drawn as equal cells.
type Memory struct {
	GPU       string   `json:"gpu"`
	Bytes     uint64   `json:"bytes"`
	CellBytes uint64   `json:"cell_bytes"`
	Uses      []Use    `json:"uses"` // the largest first, but the merged ones last
	Runs      [][3]int `json:"runs"` // equal cells: the first, how many, index in Uses; cells in no run are free
}

// Use is a use of memory, with the size of all its ranges.
type Use struct {
	State   string `json:"state"` // as in stat.MemoryRange; "other": merged uses
	Port    string `json:"port,omitempty"`
	Queue   int    `json:"queue"`
	Binding uint32 `json:"binding,omitempty"`
	Bytes   uint64 `json:"bytes"`
}

// memoryMaps draws the maps of all GPUs. A cell shows the use that has the most bytes in it, and is free only
// if all its bytes are.
func memoryMaps(list []stat.GPUMap) []Memory {
	out := make([]Memory, 0, len(list))
	for i := range list {
		n := len(list)
		out = append(out, memoryMap(&list[i], min(gpuCells, max(1, maxCells/n)), min(gpuUses, max(1, maxUses/n))))
	}
	return out
}

func memoryMap(g *stat.GPUMap, cells, uses int) Memory {
	m := Memory{GPU: g.GPU, Bytes: g.Bytes, Uses: []Use{}, Runs: [][3]int{}}
	m.CellBytes = max(leastCell, (g.Bytes+uint64(cells)-1)/uint64(cells))
	index := map[Use]int{}
	var places []int // for each range its index in Uses
	for _, r := range g.Ranges {
		u := Use{State: r.State, Port: r.Port, Queue: r.Queue, Binding: r.Binding}
		n, ok := index[u]
		if !ok {
			n = len(m.Uses)
			index[u] = n
			m.Uses = append(m.Uses, u)
		}
		m.Uses[n].Bytes += r.Len
		places = append(places, n)
	}
	to := m.orderUses(uses)
	d := drawing{m: &m, cell: -1, in: map[int]uint64{}}
	for i, r := range g.Ranges {
		d.add(r.Off, r.Len, to[places[i]])
	}
	d.flush()
	return m
}

// orderUses sorts the uses, the largest first, and merges all from index most on into one. to has the new index of a
// use, by its old index.
func (m *Memory) orderUses(most int) (to []int) {
	order := make([]int, len(m.Uses))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(m.Uses[b].Bytes, m.Uses[a].Bytes) })
	to = make([]int, len(order))
	list := []Use{}
	for i, was := range order {
		to[was] = min(i, most)
		switch {
		case i < most:
			list = append(list, m.Uses[was])
			continue
		case i == most:
			list = append(list, Use{State: "other", Queue: -1})
		}
		list[most].Bytes += m.Uses[was].Bytes
	}
	m.Uses = list
	return to
}

// drawing makes runs of cells from ranges, which are added in the order of their offsets.
type drawing struct {
	m    *Memory
	cell int            // the current cell; -1: none
	in   map[int]uint64 // used bytes of the current cell, by use
}

func (d *drawing) add(off, n uint64, use int) {
	size := d.m.CellBytes
	if off >= d.m.Bytes {
		return
	}
	for end := off + min(n, d.m.Bytes-off); off < end; {
		if c := int(off / size); c != d.cell {
			d.flush()
			d.cell = c
		}
		if whole := int((end - off) / size); off%size == 0 && whole > 0 {
			d.run(d.cell, whole, use)
			off += uint64(whole) * size
			d.cell = -1
			continue
		}
		part := min(end-off, size-off%size)
		d.in[use] += part
		off += part
	}
}

func (d *drawing) flush() {
	if len(d.in) == 0 {
		return
	}
	most := slices.MaxFunc(slices.Sorted(maps.Keys(d.in)), func(a, b int) int { return cmp.Compare(d.in[a], d.in[b]) })
	d.run(d.cell, 1, most)
	clear(d.in)
}

func (d *drawing) run(first, n, use int) {
	if i := len(d.m.Runs) - 1; i >= 0 {
		if last := &d.m.Runs[i]; last[2] == use && last[0]+last[1] == first {
			last[1] += n
			return
		}
	}
	d.m.Runs = append(d.m.Runs, [3]int{first, n, use})
}
