package virtio

import "vnic.dev/vnic/internal/nic"

// refusal is that a frame was not taken, and what it found. Until a chain is added or returned, or memory changes, a
// frame of this kind that needs more room is refused without another walk.
type refusal struct {
	result     nic.Result // PutNoBuffer or PutTooBig
	generation uint64     // of the space
	chains     int        // that were looked at
	all        bool       // that is all that there were
	room       uint32
}

// refusalOf is that of a frame's kind.
func (q *rxQueue) refusalOf(f *nic.Frame) *refusal {
	if f.Split {
		return &q.refused[1]
	}
	return &q.refused[0]
}

// remember keeps what a frame found that is refused: n chains, perhaps all, which are rewound.
func (q *rxQueue) remember(f *nic.Frame, n int, all bool, res nic.Result) {
	q.remembers = true
	*q.refusalOf(f) = refusal{res, q.dev.space.Generation(), n, all, q.room}
}

// recall refuses a frame if that is known without a walk.
func (q *rxQueue) recall(f *nic.Frame) (res nic.Result, known bool) {
	r := q.refusalOf(f)
	if r.chains == 0 || q.roomFor(f) <= r.room || r.generation != q.dev.space.Generation() ||
		r.all && q.vq.Available() != r.chains {
		return 0, false
	}
	q.short = r.chains
	return r.result, true
}

// forget drops what is known of the next chains: there are others now.
func (q *rxQueue) forget() {
	if q.remembers {
		q.remembers, q.refused = false, [2]refusal{}
	}
}

// full reports whether the ring's table, beside the n chains that are all there are, has no place for one more as short
// as the shortest of these.
func (q *rxQueue) full(n int) bool {
	free, least := int(q.vq.Size()), int(q.vq.Size())
	for i := range n {
		free -= q.chains[i].Descs
		least = min(least, q.chains[i].Descs)
	}
	return free < least
}
