package run

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/lab/pcie"
	"vnic.dev/vnic/internal/session"
)

type plan struct {
	pool   uint64 // bytes of the receiver's page pool, at the begin of its part of GPU memory
	rounds []uint64
}

// cut makes a plan. send and recv are the bytes of GPU memory for the sender's end and the receiver's.
func (o *Options) cut(send, recv uint64) (p plan, err error) {
	p.pool = min(recv/poolShare, maxPool) / page * page
	room := min(send, recv-p.pool) / page * page
	if o.Size/room >= maxRounds {
		return p, fmt.Errorf("--size: more than %d rounds of what fits GPU memory: a larger --gpu-memory makes fewer",
			maxRounds)
	}
	for left := o.Size; left > 0; {
		n := min(left, room)
		p.rounds = append(p.rounds, n)
		left -= n
	}
	return p, nil
}

// window returns how many bytes of a GPU's memory a guest allocates for an end of the stream if its kernel drives the
// NIC.
func (p *plan) window() uint64 {
	return (p.pool + session.Pages(slices.Max(p.rounds)) + session.HugePage - 1) &^ (session.HugePage - 1)
}

const maxRounds = 1 << 15

// place has the numbers of the guest, the NIC and the GPU of an end.
type place struct{ guest, nic, gpu int }

func (p place) ofGPU() place { return place{guest: p.guest, gpu: p.gpu} }

// plan makes the streams: their NICs, GPUs and rounds.
func (r *runner) plan() error {
	var trees [2]*tree
	for i := range trees {
		t, nics, gpus := r.desc.Tree(i)
		trees[i] = &tree{t, nics, gpus}
	}
	used := make(map[place]int) // by how many ends each GPU is used
	for rail := range r.opt.rails() {
		for _, way := range r.ways {
			r.add(rail, way, trees, used)
		}
	}
	for rail := range slices.Chunk(r.streams, len(r.ways)) {
		room := [2]uint64{math.MaxUint64, math.MaxUint64}
		for _, s := range rail {
			if err := s.share(&r.desc, used, &room); err != nil {
				return r.ofRail(s, err)
			}
		}
		for j, s := range rail {
			var err error
			if s.plan, err = s.opt.cut(room[0], room[1]); err != nil {
				return r.ofRail(s, err)
			}
			s.port = basePort + uint16(4*1000*j)
		}
	}
	return nil
}

func (r *runner) ofRail(s *stream, err error) error {
	if r.opt.Lab == nil {
		return err
	}
	return fmt.Errorf("rail %d: %w", s.rail.Rail, err)
}

// tree is a guest's PCIe tree with the names in it of the guest's NICs and GPUs.
type tree struct {
	*pcie.Tree
	nics, gpus []string
}

// add makes the stream of one direction of a rail. Each end uses the nearest GPU that its NIC may address; of several
// equally near ones, one that the fewest ends use so far.
func (r *runner) add(rail int, way [2]int, trees [2]*tree, used map[place]int) {
	s := &stream{opt: *r.opt, rail: Rail{Rail: rail}}
	s.opt.P2P = true
	if r.opt.Rails > 0 {
		s.opt.Seed ^= uint64(len(r.streams)+1) << 32
	}
	worst := pcie.Same
	for i, guest := range way {
		g, t := &r.desc.Guests[guest], trees[guest]
		n := &g.NICs[rail]
		here := place{guest: guest, nic: rail, gpu: -1}
		var path pcie.Path
		for j := range g.GPUs {
			if !n.Reaches(j) {
				continue
			}
			other := place{guest: guest, nic: rail, gpu: j}
			to := t.Path(t.nics[rail], t.gpus[j])
			if here.gpu < 0 || cmp.Or(cmp.Compare(to.Distance, path.Distance),
				cmp.Compare(used[other.ofGPU()], used[here.ofGPU()])) < 0 {
				here, path = other, to
			}
		}
		if worst = max(worst, path.Distance); !r.opt.away(guest) { // P2P is about the ends on this host
			s.opt.P2P = s.opt.P2P && path.P2P() && !r.desc.NoP2P
		}
		s.ends[i] = &end{Node: session.Node{Name: n.Name}, base: uint64(used[here.ofGPU()]), addr: r.opt.addr(n)}
		used[here.ofGPU()]++
		s.places[i] = here
	}
	name := func(i int) string { return r.desc.Guests[way[i]].Name + "." + trees[way[i]].gpus[s.places[i].gpu] }
	s.rail.From, s.rail.FromGPU = s.ends[0].Name, name(0)
	s.rail.To, s.rail.ToGPU = s.ends[1].Name, name(1)
	s.rail.Path, s.rail.P2P = worst.String(), s.opt.P2P
	r.streams = append(r.streams, s)
}

// share gives each end of a stream a part of its GPU's memory: ends of the same GPU get equal parts. It
// changes base from the end's number among these to its part's offset (0 if the guest's kernel drives the NIC: the
// part is the end's own window), and lowers room to the parts' sizes. It returns an error if a part is too small.
func (s *stream) share(d *lab.Description, used map[place]int, room *[2]uint64) error {
	for i, e := range s.ends {
		here := s.places[i]
		g, n := &d.Guests[here.guest], uint64(used[here.ofGPU()])
		model := g.ModelOf(&g.NICs[here.nic])
		memory := g.GPUs[here.gpu].Memory
		part := session.Usable(model, memory) / n &^ (session.HugePage - 1)
		if part < leastRoom {
			return s.tooSmall(i, model, memory, n)
		}
		if e.base *= part; model.Kernel {
			e.base = 0
		}
		room[i] = min(room[i], part)
	}
	return nil
}

// tooSmall returns the error for end i's GPU, which lacks memory for n ends.
func (s *stream) tooSmall(i int, model lab.Model, memory, n uint64) error {
	least, power := n*leastRoom, s.opt.Lab == nil || !model.Node // power: the GPU's memory must be a power of two
	for session.Usable(model, least)/n&^(session.HugePage-1) < leastRoom || power && least&(least-1) != 0 {
		least += session.HugePage
	}
	if s.opt.Lab == nil {
		return fmt.Errorf("--gpu-memory %s is too small: %d MiB at least", lab.FormatBytes(memory), least>>20)
	}
	transfers := "a transfer"
	if n > 1 {
		transfers = fmt.Sprint(n, " transfers")
	}
	return fmt.Errorf("%s has %s of memory, too small for %s at a NIC of model %s: %s at least",
		[]string{s.rail.FromGPU, s.rail.ToGPU}[i], lab.FormatBytes(memory), transfers, model.Name, lab.FormatBytes(least))
}
