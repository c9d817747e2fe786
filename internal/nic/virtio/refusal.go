package virtio

import "vnic.dev/vnic/internal/nic"

// refusal records that a frame was refused, and why. Until a chain is added or returned, or memory
// changes, a frame of this kind that needs at least more room is refused without another walk.
type refusal struct {
	result     nic.Result // PutNoBuffer or PutTooBig
	generation uint64     // Generation of the space
	chains     int        // number of chains looked at
	all        bool       // there were no other chains
	room       uint32
}

// refusalOf returns the refusal for a frame's kind (split or whole).
func (q *rxQueue) refusalOf(f *nic.Frame) *refusal {
	if f.Split {
		return &q.refused[1]
	}
	return &q.refused[0]
}

// remember records the refusal of a frame after a walk over n chains, which are rewound; all: there
// are no others.
func (q *rxQueue) remember(f *nic.Frame, n int, all bool, res nic.Result) {
	q.remembers = true
	*q.refusalOf(f) = refusal{res, q.dev.space.Generation(), n, all, q.room}
}

// recall refuses a frame if the recorded refusal shows the result of a walk.
func (q *rxQueue) recall(f *nic.Frame) (res nic.Result, known bool) {
	r := q.refusalOf(f)
	if r.chains == 0 || q.roomFor(f) <= r.room || r.generation != q.dev.space.Generation() ||
		r.all && q.vq.Available() != r.chains {
		return 0, false
	}
	q.short = r.chains
	return r.result, true
}

// forget clears the refusals: the next chains have changed.
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
