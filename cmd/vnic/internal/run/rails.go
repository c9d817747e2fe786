package run

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"vnic.dev/vnic/guest-images/transfer"
	"vnic.dev/vnic/lab"
	"vnic.dev/vnic/lab/labfile"
	"vnic.dev/vnic/nic"
	"vnic.dev/vnic/pcie"
)

// With Options.Rails there are several transfers at the same time, each between NICs of the same number of two guests:
// a rail, in one direction or in both. Each has a runner of its own, with its seed, its memory, its connection and its
// proof; the lab is common to all. They begin to transfer together.

// MaxRails is how many rails there can be: the NICs of a guest, each with a GPU.
const MaxRails = 32

// Rail is what a transfer of one direction of a rail has done.
type Rail struct {
	Rail    int    `json:"rail"` // from 0
	From    string `json:"from"` // NIC, as a.nic0
	FromGPU string `json:"from_gpu"`
	To      string `json:"to"`
	ToGPU   string `json:"to_gpu"`
	Path    string `json:"path"`            // the worse of both ends' between NIC and GPU: PIX, PXB, PHB, NODE, SYS
	P2P     bool   `json:"p2p"`             // both ends' NICs reach their GPU's memory themselves
	Share   *Share `json:"share,omitempty"` // of its links, where these have rates
	Run
}

// stream is a transfer of one direction of a rail.
type stream struct {
	runner
	opt  Options
	plan plan
	gpus [2]*lab.GPUMemory
	is   Rail

	noP2P bool               // of the whole lab
	probe map[string]float64 // by mode, bytes a second without links' rates; nil: nobody has tried
}

// rails is a run over rails.
type rails struct {
	opt     *Options
	lab     *lab.Lab
	desc    lab.Description
	nodes   map[*lab.Port]*transfer.Node // of in-process guests
	streams []*stream
}

// describeRails is the lab of a run over rails: the file's, or guests with a NIC and a GPU a rail.
func (o *Options) describeRails() (d lab.Description, err error) {
	if o.Lab != nil {
		d = o.Lab.Complete()
		if len(d.Guests) != 2 {
			return d, fmt.Errorf("--lab: %d guests: vnic run has two, from the first to the second", len(d.Guests))
		}
		for _, g := range d.Guests {
			if len(g.NICs) < o.Rails {
				return d, fmt.Errorf("--rails %d: guest %s of the lab file has %d NICs", o.Rails, g.Name, len(g.NICs))
			}
		}
		d.NoP2P = d.NoP2P || !o.P2P
		return d, nil
	}
	models, err := o.models()
	if err != nil {
		return d, err
	}
	d.NoP2P = !o.P2P
	for i, name := range [2]string{"a", "b"} {
		g := lab.Guest{Name: name}
		for rail := range o.Rails {
			n := lab.NIC{Name: fmt.Sprintf("%s.nic%d", name, rail), Model: models[i].Name, MTU: o.MTU,
				QueuePairs: o.queuePairs(models[i]), GPUs: []int{rail}}
			n.Addr4, n.Addr6 = labfile.Addrs(rail, i)
			g.NICs = append(g.NICs, n)
			g.GPUs = append(g.GPUs, lab.GPU{Name: fmt.Sprintf("%s.gpu%d", name, rail), Memory: o.GPUMemory})
		}
		d.Guests = append(d.Guests, g)
	}
	d.Impair(o.Impairment)
	return d, nil
}

// checkRails says what is wrong with the options of a run over rails.
func (o *Options) checkRails() error {
	switch {
	case o.Rails < 0 || o.Rails > MaxRails:
		return fmt.Errorf("--rails %d: 1 to %d", o.Rails, MaxRails)
	case o.Rails == 0 && o.Bidir:
		return errors.New("--bidir is of rails: --rails 1 --bidir")
	case o.Rails == 0:
		return nil
	case !o.InProc:
		return errors.New("--rails, --lab: with --guest inproc only, so far")
	case o.Keep:
		return errors.New("--keep: not with --rails")
	}
	d, err := o.describeRails()
	if err == nil {
		err = d.Check()
	}
	if err != nil {
		return err
	}
	for _, g := range d.Complete().Guests {
		for _, n := range g.NICs[:o.Rails] {
			if n.Model != NICVirtio {
				return fmt.Errorf("--rails: %s is of model %s, and guests in this process have virtio only", n.Name, n.Model)
			}
			if n.GPUs != nil && len(n.GPUs) == 0 || len(g.GPUs) == 0 {
				return fmt.Errorf("--rails: %s reaches no GPU", n.Name)
			}
			if n.QueuePairs <= o.BindQueues {
				return fmt.Errorf("--bind-queues %d: %s has %d pairs of queues, and ordinary traffic wants one more",
					o.BindQueues, n.Name, n.QueuePairs)
			}
		}
	}
	return nil
}

// Take has the guests be those of a lab file, and n of their NICs transfer; 0: all that both have.
func (o *Options) Take(l *labfile.Lab, n int) {
	o.Lab, o.Rails = l, n
	least := MaxRails
	for _, g := range l.Guests {
		least = min(least, len(g.NICs))
		for _, n := range g.NICs { // what is lost on the way is said of the worst link
			o.Loss, o.Reorder = max(o.Loss, n.Link.Up.Loss), max(o.Reorder, n.Link.Up.Reorder)
		}
	}
	if n == 0 {
		o.Rails = least
	}
}

// doRails is Do over rails.
func doRails(ctx context.Context, o *Options) (rep *Report, err error) {
	if err := o.stage(ctx, Step{Stage: "gpu-memory"}); err != nil {
		return nil, orCause(ctx, err)
	}
	r, err := newRails(o)
	if err != nil {
		return nil, orCause(ctx, err)
	}
	defer func() {
		if cerr := r.close(); cerr != nil {
			rep, err = nil, errors.Join(err, fmt.Errorf("clearing up: %w", cerr))
		}
	}()
	defer addProcs(2 * len(r.streams))()
	if err := r.open(ctx); err != nil {
		return nil, orCause(ctx, err)
	}
	if o.railHook != nil {
		o.railHook(r)
	}
	info := inProcInfo
	rep = &info
	rep.describe(o)
	rep.P2P, rep.MTU = !r.desc.NoP2P, r.lab.MTU()
	if err := r.probe(ctx); err != nil {
		return nil, orCause(ctx, err)
	}
	rep.Scale = r.lab.Clock().Scale()
	for i, mode := range o.Modes {
		if err := r.run(ctx, rep, mode, uint64(i)); err != nil {
			return nil, orCause(ctx, fmt.Errorf("mode %s: %w", mode, err))
		}
	}
	rep.compare()
	return rep, r.check(rep)
}

// newRails makes the lab, and says what goes from where to where.
func newRails(o *Options) (r *rails, err error) {
	r = &rails{opt: o, nodes: make(map[*lab.Port]*transfer.Node)}
	if r.desc, err = o.describeRails(); err != nil {
		return nil, err
	}
	r.desc = r.desc.Complete()
	if r.lab, err = lab.Open(r.desc, lab.Options{Log: o.Log, Services: o.Services}); err != nil {
		return nil, err
	}
	used := make(map[*lab.GPUMemory]int)
	for rail := range o.Rails {
		a, b := r.lab.Machine(0), r.lab.Machine(1)
		r.add(rail, a, b, used)
		if o.Bidir {
			r.add(rail, b, a, used)
		}
	}
	for i, s := range r.streams {
		s.share(used)
		if s.plan, err = s.opt.plan(); err != nil {
			return nil, errors.Join(fmt.Errorf("rail %d: %w", s.is.Rail, err), r.lab.Close())
		}
		s.runner.opt, s.lab, s.sw, s.rail, s.stop = &s.opt, r.lab, r.lab.Switch(), true, func() {}
		s.port = basePort + uint16(4*1000*(i%2))
		s.links.edges, s.noP2P = r.lab.Edges(), r.desc.NoP2P
	}
	return r, nil
}

// add adds one direction of a rail. Either end takes the GPU that is nearest to its NIC, and of several as near the one
// that the fewest have taken.
func (r *rails) add(rail int, from, to *lab.Machine, used map[*lab.GPUMemory]int) {
	s := &stream{opt: *r.opt, is: Rail{Rail: rail}}
	s.opt.Rails, s.opt.P2P = 0, true
	s.opt.Seed ^= uint64(len(r.streams)+1) << 32
	s.opt.NIC, s.opt.MTU = NICVirtio, from.Ports[rail].MTU
	worst := pcie.Same
	for i, m := range []*lab.Machine{from, to} {
		p := m.Ports[rail]
		to := func(g *lab.GPUMemory) pcie.Path { return m.Tree.Path(p.Place, g.Place) }
		gpu := slices.MinFunc(p.GPUs, func(a, b *lab.GPUMemory) int {
			return cmp.Or(cmp.Compare(to(a).Distance, to(b).Distance), cmp.Compare(used[a], used[b]))
		})
		worst, s.opt.P2P = max(worst, to(gpu).Distance), s.opt.P2P && to(gpu).P2P() && !r.desc.NoP2P
		e := &end{name: p.Name, opt: &s.opt, log: r.opt.Log, hw: m, nic: p, gpu: gpu.GPU, base: uint64(used[gpu]),
			port: p.NIC()}
		e.digest = e.engineDigest
		used[gpu]++
		s.ends[i], s.gpus[i] = e, gpu
	}
	s.is.From, s.is.FromGPU = s.ends[0].name, from.Name+"."+s.gpus[0].Place
	s.is.To, s.is.ToGPU = s.ends[1].name, to.Name+"."+s.gpus[1].Place
	s.is.Path, s.is.P2P = worst.String(), s.opt.P2P
	r.streams = append(r.streams, s)
}

// share has those that have taken the same GPU have equal parts of it: an end's base has been its number among them.
func (s *stream) share(used map[*lab.GPUMemory]int) {
	s.opt.GPUMemory = math.MaxUint64
	for i, e := range s.ends {
		part := e.gpu.Size() / uint64(used[s.gpus[i]]) &^ (hugePage - 1)
		e.base *= part
		s.opt.GPUMemory = min(s.opt.GPUMemory, part)
	}
}

// open makes guests in this process: of each NIC one stack, and a transfer.Node for each direction.
func (r *rails) open(ctx context.Context) error {
	for _, stage := range []string{"boot", "setup"} {
		if err := r.opt.stage(ctx, Step{Stage: stage}); err != nil {
			return err
		}
	}
	for _, s := range r.streams {
		for _, e := range s.ends {
			if first := r.nodes[e.nic]; first != nil {
				e.guest = first.Another()
				continue
			}
			node, err := e.open()
			if err != nil {
				return err
			}
			r.nodes[e.nic], e.guest = node, node
		}
	}
	if r.opt.Confine != nil {
		return r.opt.Confine()
	}
	return nil
}

// run transfers on all rails in one mode, and adds what came of it to the report.
func (r *rails) run(ctx context.Context, rep *Report, mode string, number uint64) error {
	before, carried := countersOf(r.ports()...), r.carried()
	eg, ctx := errgroup.WithContext(ctx)
	together := newBarrier(ctx, len(r.streams))
	done := newProgress(r.opt, mode, len(r.streams))
	runs := make([]*Run, len(r.streams))
	for i, s := range r.streams {
		s.opt.Stage = func(step Step) {
			if i == 0 && r.opt.Stage != nil {
				r.opt.Stage(step)
			}
			if step.Stage == "transfer" && step.Round == 1 {
				together.wait()
			}
		}
		s.opt.Progress = func(_ string, n, _ uint64) { done.set(i, n) }
		eg.Go(func() (err error) {
			if runs[i], err = s.runMode(ctx, s.plan, mode, number); err != nil {
				return fmt.Errorf("%s to %s: %w", s.is.From, s.is.To, err)
			}
			return nil
		})
	}
	if err := eg.Wait(); err != nil {
		return err
	}
	sum := Run{Mode: mode, SHA256Match: true, Seed: r.opt.Seed, Links: r.linksSince(carried, mode)}
	model, limits := r.model(mode)
	for i, s := range r.streams {
		one := s.is
		one.Run = *runs[i]
		if model[i] < math.Inf(1) {
			one.Share = s.measure(runs[i], r.lab.Clock().Scale(), s.probe[mode], model[i], limits[i], s.loads(mode))
		}
		rep.Rails = append(rep.Rails, one)
		sum.add(runs[i])
	}
	// The two directions of a rail have these counters in common.
	now := countersOf(r.ports()...)
	sum.DroppedPackets, sum.CopyEngineBytes = now.drops-before.drops, now.engine-before.engine+sum.BouncedBytes
	rep.Runs = append(rep.Runs, sum)
	return nil
}

// ports are those of all rails.
func (r *rails) ports() (list []*nic.Port) {
	for p := range r.nodes {
		list = append(list, p.NIC())
	}
	return list
}

// add adds what another transfer at the same time has done, but for what is counted of whole NICs.
func (r *Run) add(x *Run) {
	r.Seconds, r.Rounds, r.SHA256Match = max(r.Seconds, x.Seconds), max(r.Rounds, x.Rounds), r.SHA256Match && x.SHA256Match
	if r.SHA256 != "" {
		r.SHA256 += ","
	}
	r.SHA256 += x.SHA256
	if x.Audit != nil && r.Audit == nil {
		r.Audit = &AuditCount{}
	}
	of := func(r *Run) []*uint64 {
		return []*uint64{&r.Bytes, &r.PayloadBytesDevice, &r.PayloadBytesHost, &r.LinearBytes, &r.HeaderBytes,
			&r.RetransmittedBytes, &r.Fragments, &r.BouncedBytes, &r.TX.Device, &r.TX.Host, &r.RX.Device, &r.RX.Host}
	}
	more := of(x)
	for i, n := range of(r) {
		*n += *more[i]
	}
	if x.Audit != nil {
		r.Audit.HitsSender += x.Audit.HitsSender
		r.Audit.HitsReceiver += x.Audit.HitsReceiver
		r.Audit.BytesFound += x.Audit.BytesFound
		r.Audit.BytesScanned += x.Audit.BytesScanned
	}
}

// check holds each rail against what its mode must prove, and sees that all NICs have been given back what they had.
func (r *rails) check(rep *Report) error {
	var errs []error
	n := len(r.streams)
	for i := range rep.Rails {
		x, s := &rep.Rails[i], r.streams[i%n]
		if r.opt.MustShare && (x.Share == nil || x.Share.OfRate == nil) {
			errs = append(errs, fmt.Errorf("mode %s, %s to %s: no share: %s", x.Mode, x.From, x.To, x.Share.why()))
		}
		for _, wrong := range append(x.wrong(&s.opt), x.wrongAudit()...) {
			errs = append(errs, fmt.Errorf("mode %s, %s to %s: %s", x.Mode, x.From, x.To, wrong))
		}
		errs = append(errs, s.wrong...)
		s.wrong = nil
	}
	for _, s := range r.streams {
		errs = append(errs, s.ends[0].empty(), s.ends[1].empty())
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("%w:\n%w", ErrProof, err)
	}
	return nil
}

// close ends the guests, then the lab. What is under way of a guest's second Node ends before the first closes both.
func (r *rails) close() error {
	var eg errgroup.Group
	ctx, cancel := context.WithTimeout(context.Background(), r.opt.patience())
	defer cancel()
	for _, s := range r.streams {
		for _, e := range s.ends {
			if e.guest != nil {
				eg.Go(func() error { return e.guest.Finish(ctx) })
			}
		}
	}
	_ = eg.Wait() // what it cannot give back goes with the device
	for _, n := range r.nodes {
		eg.Go(n.Close)
	}
	return errors.Join(eg.Wait(), r.lab.Close())
}

// barrier has some wait for each other, or for the end of a context.
type barrier struct {
	ctx  context.Context
	mu   sync.Mutex
	left int
	all  chan struct{}
}

func newBarrier(ctx context.Context, n int) *barrier {
	return &barrier{ctx: ctx, left: n, all: make(chan struct{})}
}

func (b *barrier) wait() {
	b.mu.Lock()
	if b.left--; b.left == 0 {
		close(b.all)
	}
	b.mu.Unlock()
	select {
	case <-b.all:
	case <-b.ctx.Done():
	}
}

// progress adds up that of several transfers.
type progress struct {
	opt  *Options
	mode string
	mu   sync.Mutex
	done []uint64
}

func newProgress(o *Options, mode string, n int) *progress {
	return &progress{opt: o, mode: mode, done: make([]uint64, n)}
}

func (p *progress) set(i int, n uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done[i] = n
	if p.opt.Progress == nil {
		return
	}
	sum := uint64(0)
	for _, d := range p.done {
		sum += d
	}
	p.opt.Progress(p.mode, sum, p.opt.Size*uint64(len(p.done)))
}

// Fairness is Jain's index of the rates of a mode's rails: 1 where all are the same, down to 1/n.
func (rep *Report) Fairness(mode string) float64 {
	var sum, squares, n float64
	for i := range rep.Rails {
		if x := rep.Rails[i].Rate(); rep.Rails[i].Mode == mode {
			sum, squares, n = sum+x, squares+x*x, n+1
		}
	}
	if squares == 0 {
		return 0
	}
	return sum * sum / (n * squares)
}
