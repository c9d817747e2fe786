package virtio

import "vnic.dev/vnic/internal/nic"

// refusal records that the queue refused a frame, and why. Until the driver adds a chain, the
// device uses or returns one, or memory changes, the queue refuses each frame of this kind that
// needs more room than the walked chains have, without another walk.
type refusal struct {
	result     nic.Result // PutNoBuffer or PutTooBig
	generation uint64     // Generation of the space
	chains     int        // number of chains that the walk looked at
	all        bool       // these were all available chains
	room       uint32
}

// refusalOf returns the refusal for a frame's kind (split or whole).
func (q *rxQueue) refusalOf(f *nic.Frame) *refusal {
	if f.Split {
		return &q.refused[1]
	}
	return &q.refused[0]
}

// remember records the refusal of a frame after a walk over n chains, which the queue has rewound;
// all: these were all available chains.
func (q *rxQueue) remember(f *nic.Frame, n int, all bool, res nic.Result) {
	q.remembers = true
	*q.refusalOf(f) = refusal{res, q.dev.space.Generation(), n, all, q.room}
}

// recall returns the recorded result if the recorded refusal shows that another walk for frame f
// would end in the same way; otherwise known is false.
func (q *rxQueue) recall(f *nic.Frame) (res nic.Result, known bool) {
	r := q.refusalOf(f)
	if r.chains == 0 || q.roomFor(f) <= r.room || r.generation != q.dev.space.Generation() ||
		r.all && q.vq.Available() != r.chains {
		return 0, false
	}
	q.short = r.chains
	return r.result, true
}

// forget clears the refusals, because the next chains have changed.
func (q *rxQueue) forget() {
	if q.remembers {
		q.remembers, q.refused = false, [2]refusal{}
	}
}

// full reports whether the ring's descriptor table has no room for another chain beside the n
// available ones, even one as short as the shortest of them.
func (q *rxQueue) full(n int) bool {
	free, least := int(q.vq.Size()), int(q.vq.Size())
	for i := range n {
		free -= q.chains[i].Descs
		least = min(least, q.chains[i].Descs)
	}
	return free < least
}
