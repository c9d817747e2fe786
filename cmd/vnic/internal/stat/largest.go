package stat

import (
	"bytes"
	"cmp"
	"container/heap"

	"vnic.dev/vnic/splitter"
)

// shownFlows is how many flows are put together for who looks again and again: a guest makes as many as the account has
// rows.
const shownFlows = 200

// weighed is a flow, and what it moved in bytes.
type weighed struct {
	key   splitter.Flow
	moved uint64
}

// lightest is a heap whose first is the flow that moved least.
type lightest []weighed

func (h lightest) Len() int           { return len(h) }
func (h lightest) Less(i, j int) bool { return h[i].compare(&h[j]) < 0 }
func (h lightest) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *lightest) Push(x any)        { *h = append(*h, x.(weighed)) }
func (h *lightest) Pop() any {
	last := len(*h) - 1
	x := (*h)[last]
	*h = (*h)[:last]
	return x
}

func (w *weighed) compare(o *weighed) int {
	return cmp.Or(cmp.Compare(w.moved, o.moved), bytes.Compare(o.key.Src[:], w.key.Src[:]),
		bytes.Compare(o.key.Dst[:], w.key.Dst[:]), cmp.Compare(o.key.SrcPort, w.key.SrcPort),
		cmp.Compare(o.key.DstPort, w.key.DstPort), cmp.Compare(o.key.Proto, w.key.Proto))
}

// largest finds the flows that moved most, and how many others there are; nil: there are no others.
func largest(list []portFlows, most int) (want map[splitter.Flow]bool, more int) {
	sums := map[splitter.Flow][2]uint64{}
	for i := range list {
		for _, q := range list[i].rows {
			way := 0
			if q.Tx {
				way = 1
			}
			for j := range q.Rows {
				r := &q.Rows[j]
				s := sums[r.Flow]
				s[way] += r.Payload()
				sums[r.Flow] = s
			}
		}
	}
	if len(sums) <= most {
		return nil, 0
	}
	h := make(lightest, 0, most)
	for key, s := range sums {
		w := weighed{key, max(s[0], s[1])}
		switch {
		case len(h) < most:
			heap.Push(&h, w)
		case w.compare(&h[0]) > 0:
			h[0] = w
			heap.Fix(&h, 0)
		}
	}
	want = make(map[splitter.Flow]bool, most)
	for i := range h {
		want[h[i].key] = true
	}
	return want, len(sums) - most
}
