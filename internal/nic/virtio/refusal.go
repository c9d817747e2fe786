package virtio

import "vnic.dev/vnic/internal/nic"

// refusal records why the queue refused a frame, to refuse further frames without another walk over its chains
// (see recall).
type refusal struct {
	result     nic.Result // PutNoBuffer or PutTooBig
	generation uint64     // Generation of the space
	chains     int        // how many chains the walk looked at; 0: no refusal is recorded
	all        bool       // these were all available chains
	room       uint32     // that these chains have (see roomFor)
}

func (q *rxQueue) refusalOf(f *nic.Frame) *refusal {
	if f.Split {
		return &q.refused[1]
	}
	return &q.refused[0]
}

// remember records the refusal of a frame after a walk over n chains, which the caller has rewound; all: they
// were all available chains.
func (q *rxQueue) remember(f *nic.Frame, n int, all bool, res nic.Result) {
	q.remembers = true
	*q.refusalOf(f) = refusal{res, q.dev.space.Generation(), n, all, q.room}
}

// recall returns the recorded result if f needs more room than the chains of the recorded walk have, and the walk would
// find the same chains and memory again.
func (q *rxQueue) recall(f *nic.Frame) (res nic.Result, known bool) {
	r := q.refusalOf(f)
	if r.chains == 0 || q.roomFor(f) <= r.room || r.generation != q.dev.space.Generation() ||
		r.all && q.vq.Available() != r.chains {
		return 0, false
	}
	q.short = r.chains
	return r.result, true
}

func (q *rxQueue) forget() {
	if q.remembers {
		q.remembers, q.refused = false, [2]refusal{}
	}
}

// full reports whether the descriptor table has too few free descriptors for another chain with as few of them as the
// shortest of the n available chains.
func (q *rxQueue) full(n int) bool {
	free, least := int(q.vq.Size()), int(q.vq.Size())
	for i := range n {
		free -= q.chains[i].Descs
		least = min(least, q.chains[i].Descs)
	}
	return free < least
}
