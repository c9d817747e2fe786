package run

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"vnic.dev/vnic/cmd/vnic/internal/broker"
	"vnic.dev/vnic/cmd/vnic/internal/guests"
	"vnic.dev/vnic/cmd/vnic/internal/limit"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/lab/labfile"
	"vnic.dev/vnic/internal/lab/pcie"
	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/machine"
	"vnic.dev/vnic/internal/machine/qemu"
	"vnic.dev/vnic/internal/nic"
	"vnic.dev/vnic/internal/transfer"
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
	at   [2]place // of sender and receiver
	gpus [2]*lab.GPUMemory
	is   Rail

	noP2P bool                  // of the whole lab
	lost  error                 // why the transfer has ended early, of what was removed
	loads map[*lab.Edge]float64 // of the last transfer: see perByte
	probe map[string]float64    // by mode, bytes a second without links' rates; nil: nobody has tried
}

// place is where an end is in the description: a guest, and those of its NICs and GPUs that transfer.
type place struct{ guest, nic, gpu int }

// ofGPU is the GPU alone.
func (p place) ofGPU() place { return place{guest: p.guest, gpu: p.gpu} }

// rails is a run over rails.
type rails struct {
	opt     *Options
	lab     *lab.Lab
	desc    lab.Description
	nodes   map[*lab.Port]*transfer.Node // of in-process guests
	streams []*stream
	begun   func()      // called when transfers begin
	host    *host       // of a half: our own end on the network
	peer    *peer       // of a half, when it has been met
	over    atomic.Bool // it has said and heard all
}

// machines are the guests that are here.
func (r *rails) machines() []*lab.Machine {
	list := r.lab.Machines()
	if r.opt.Half != "" {
		return list[:1]
	}
	return list
}

// machine is that of guest i; nil: it is away.
func (r *rails) machine(i int) *lab.Machine {
	switch {
	case r.opt.Half == "":
		return r.lab.Machine(i)
	case r.opt.away(i):
		return nil
	}
	return r.lab.Machine(0)
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
				return d, fmt.Errorf("--rails %d: guest %s of the lab file has %d NIC%s", o.Rails, g.Name,
					len(g.NICs), map[bool]string{true: "s"}[len(g.NICs) != 1])
			}
		}
		d.NoP2P = d.NoP2P || !o.P2P
		return d, o.sabotage(&d)
	}
	models, err := o.models()
	if err != nil {
		return d, err
	}
	d.NoP2P = !o.P2P
	for i, name := range [2]string{"a", "b"} {
		g := lab.Guest{Name: name, Driver: o.GPUDriver, IOMMU: o.IOMMU}
		for rail := range o.Rails {
			n := lab.NIC{Name: fmt.Sprintf("%s.nic%d", name, rail), Model: models[i].Name, MTU: o.MTU, MaxMTU: o.MaxMTU,
				XDP: o.XDP, RSCUsecs: o.RSCUsecs, QueuePairs: o.queuePairs(models[i]), GPUs: []int{rail}}
			n.Addr4, n.Addr6 = labfile.Addrs(rail, i)
			g.NICs = append(g.NICs, n)
			g.GPUs = append(g.GPUs, lab.GPU{Name: fmt.Sprintf("%s.gpu%d", name, rail), Memory: o.GPUMemory})
		}
		d.Guests = append(d.Guests, g)
	}
	d.Impair(o.Impairment)
	return d, o.sabotage(&d)
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
	case o.Size == 0:
		return errors.New("--size 0: nothing to transfer")
	case !o.InProc && o.Lab == nil && o.Rails > maxBare:
		return fmt.Errorf("--rails %d: QEMU has room for %d NICs with GPUs, or more in a lab file with sockets", o.Rails,
			maxBare)
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
	d = d.Complete()
	for i, g := range d.Guests {
		for _, n := range g.NICs[:o.Rails] {
			switch {
			case o.InProc && n.Model != NICVirtio && !o.away(i):
				return fmt.Errorf("--rails: %s is of model %s, and guests in this process have virtio only", n.Name, n.Model)
			case n.GPUs != nil && len(n.GPUs) == 0 || len(g.GPUs) == 0:
				return fmt.Errorf("--rails: %s reaches no GPU", n.Name)
			case guests.UsedPairs(n.Model, n.QueuePairs) <= o.BindQueues:
				return fmt.Errorf("--bind-queues %d: %s has %d pairs of queues, and ordinary traffic wants one more",
					o.BindQueues, n.Name, guests.UsedPairs(n.Model, n.QueuePairs))
			}
		}
		if err := o.checkRAM(i, &g); err != nil {
			return err
		}
	}
	if err := o.checkSubnets(&d); err != nil {
		return err
	}
	return (&rails{opt: o, desc: d}).plan()
}

// checkSubnets sees whether both ends of each rail are in one subnet: a lab file may say others.
func (o *Options) checkSubnets(d *lab.Description) error {
	for rail := range o.Rails {
		a, b := &d.Guests[0].NICs[rail], &d.Guests[1].NICs[rail]
		from, to := a.Addr4, b.Addr4
		if o.Family == 6 {
			from, to = a.Addr6, b.Addr6
		}
		if from.Masked() != to.Masked() {
			return fmt.Errorf("--lab: %s has %v, and %s %v: the ends of a rail are in one subnet: name others, or leave them out",
				a.Name, from, b.Name, to)
		}
	}
	return nil
}

// modelsOf are the models of a guest's NICs that are used, each once.
func (o *Options) modelsOf(g *lab.Guest) (list []string) {
	for _, n := range g.NICs[:o.Rails] {
		list = append(list, n.Model)
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// checkRAM sees whether guest i has RAM for all its NICs, of which each wants huge pages. Where GPUs are NUMA nodes,
// all that runs in the guest keeps to the first socket's.
func (o *Options) checkRAM(i int, g *lab.Guest) error {
	if o.InProc || o.away(i) {
		return nil
	}
	ram, _ := o.machine(i)
	pages, most, node := 0, 0, false // the least RAM has room for those of one NIC
	for i := range g.NICs {
		model := g.ModelOf(&g.NICs[i])
		one := machine.SoftwareFor(model.Name).HugePages
		pages, most, node = pages+one, max(most, one), node || model.Node
	}
	least := lab.MinRAM + uint64(pages-most)*guests.HugePage
	which := ""
	if n := len(g.Sockets); n > 1 && node {
		least *= uint64(n)
		which = fmt.Sprintf(", and uses that of the first of %d sockets", n)
	}
	if ram >= least {
		return nil
	}
	return fmt.Errorf("--rails: guest %s has %s of RAM for %d NICs%s: %s at least", g.Name, lab.FormatBytes(ram),
		len(g.NICs), which, lab.FormatBytes(least))
}

// maxBare is how many NICs and as many GPUs there is room for in a QEMU that is told of no PCIe tree: 24 slots.
const maxBare = 12

// machine says what guest i has besides NICs and GPUs.
func (o *Options) machine(i int) (ram uint64, cpus int) {
	if o.Lab != nil {
		return o.Lab.Machines[i].RAM, o.Lab.Machines[i].CPUs
	}
	return o.Memory, 1
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

// nodeMemory is what a GPU should have that is a NUMA node.
const nodeMemory = 128 << 20

// Remodel has all NICs of a lab file be of NIC's models, the first guest's and the other's. GPUs whose memory is then a
// NUMA node grow to what those should have; what cannot be hotplug any more is not.
func (o *Options) Remodel(l *labfile.Lab) error {
	models, err := o.models()
	for i := range l.Guests {
		g, m := &l.Guests[i], models[min(i, 1)]
		for j := range g.NICs {
			g.NICs[j].Model = m.Name
			g.NICs[j].Hotplug = g.NICs[j].Hotplug && !m.VFIOUser
		}
		for j := range g.GPUs {
			if m.With(g.Driver).Node {
				g.GPUs[j].Memory, g.GPUs[j].Hotplug = max(g.GPUs[j].Memory, nodeMemory), false
			}
		}
	}
	l.HotplugFor(l.Script)
	return err
}

// doRails is Do over rails.
func doRails(ctx context.Context, o *Options) (rep *Report, err error) {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	im, err := prepareGuests(ctx, o) // stage fetch
	defer func() { _ = im.Close() }()
	if err == nil {
		err = o.stage(ctx, Step{Stage: "gpu-memory"})
	}
	if err != nil {
		return nil, guests.OrCause(ctx, err)
	}
	r, err := newRails(o, fail)
	if err != nil {
		return nil, guests.OrCause(ctx, err)
	}
	defer func() {
		if cerr := errors.Join(r.leave(err), r.close()); cerr != nil {
			rep, err = nil, errors.Join(err, fmt.Errorf("clearing up: %w", cerr))
		}
	}()
	if o.InProc {
		defer addProcs(2 * len(r.streams))()
	}
	if o.Half != "" {
		defer addProcs(1)()
		if err := r.meetPeer(ctx, fail); err != nil {
			return nil, err
		}
	}
	if im != nil {
		o.noteLinux(&r.desc)
	}
	if err := r.open(ctx, im); err != nil {
		return nil, r.blame(ctx, err)
	}
	for _, m := range r.lab.Machines() {
		m.SetGuest(lateTokens(r.endsOf(m)...))
	}
	if o.railHook != nil {
		o.railHook(r)
	}
	rep, err = r.transfer(ctx)
	return rep, r.conclude(ctx, rep, err)
}

// noteLinux tells what the kernels of guests that decide by themselves which NIC reaches which GPU refuse, and where
// they allow what the lab's tree does not, which is what is counted.
func (o *Options) noteLinux(d *lab.Description) {
	for i, g := range d.Guests {
		if g.Driver != lab.DriverVNICGPU || o.away(i) {
			continue
		}
		tree, _, _ := d.Tree(i)
		linux := lab.SeenByLinux(tree, g.Driver)
		for _, p := range append(d.Refused(i, linux.Path), d.Differences(i, linux.Path)...) {
			o.note("%s: %s: %s", g.Name, p.Some(), p.Text)
		}
	}
}

// transfer transfers in each mode, and reports.
func (r *rails) transfer(ctx context.Context) (*Report, error) {
	o := r.opt
	rep := &Report{}
	*rep = r.streams[0].info
	rep.describe(o)
	rep.P2P, rep.MTU, rep.NIC = !r.desc.NoP2P, r.lab.MTU(), strings.Join(o.modelsOf(&r.desc.Guests[0]), "+")
	if other := strings.Join(o.modelsOf(&r.desc.Guests[1]), "+"); other != rep.NIC {
		rep.NIC += "," + other
	}
	if own, other := o.here(); o.Half != "" {
		rep.Half = &Half{Guest: r.desc.Guests[own].Name, Peer: r.desc.Guests[other].Name}
	}
	if err := r.probe(ctx); err != nil {
		return nil, r.blame(ctx, err)
	}
	rep.Scale = r.lab.Clock().Scale()
	defer r.playScript(ctx)()
	for i, mode := range o.Modes {
		o.Recorder.mode(mode)
		if err := r.run(ctx, rep, mode, uint64(i)); err != nil {
			return nil, r.blame(ctx, fmt.Errorf("mode %s: %w", mode, err))
		}
		if err := r.lost(); err != nil { // the other rails have ended well, and are reported
			r.awaitRemovals(ctx)
			if err = errors.Join(r.blame(ctx, err), r.check(rep)); len(rep.Rails) == 0 {
				return nil, err
			}
			return rep, err
		}
	}
	rep.compare()
	return rep, r.check(rep)
}

// lost is why transfers have ended early, of what was removed; nil: none has.
func (r *rails) lost() error {
	var errs []error
	for _, s := range r.streams {
		errs = append(errs, s.lost)
	}
	return errors.Join(errs...)
}

// blame is a runner's: the first has an end in either guest. Where one is on another host, whose end may have broken
// the connection, that has a moment to say why.
func (r *rails) blame(ctx context.Context, err error) error {
	if r.peer != nil && !r.streams[0].gone() {
		select {
		case <-ctx.Done():
		case <-time.After(limits.OtherHost.Here()):
		}
	}
	return r.streams[0].blame(ctx, err)
}

// newRails makes the lab, and says what goes from where to where. fail is told what ends the run meanwhile.
func newRails(o *Options, fail func(error)) (r *rails, err error) {
	r = &rails{opt: o, nodes: make(map[*lab.Port]*transfer.Node), begun: func() {}}
	if r.desc, err = o.describeRails(); err != nil {
		return nil, err
	}
	r.desc = r.desc.Complete()
	if err := r.plan(); err != nil {
		return nil, err
	}
	conf, opened := o.labOptions(), r.desc
	if o.Half != "" {
		opened = o.halve(r.desc)
		conf.Services = append(r.uplinks(fail), conf.Services...)
	}
	if r.lab, err = lab.Open(opened, conf); err != nil {
		return nil, err
	}
	nodes := [2]int{} // so far, of each guest
	for _, s := range r.streams {
		s.lab, s.sw = r.lab, r.lab.Switch()
		s.links.edges, s.noP2P = r.lab.Edges(), r.desc.NoP2P
		for i, e := range s.ends {
			at := s.at[i]
			if e.hw = r.machine(at.guest); e.hw == nil {
				continue
			}
			e.nic, s.gpus[i] = e.hw.Ports[at.nic], e.hw.GPUs[at.gpu]
			e.gpu, e.port, e.digest = s.gpus[i].GPU, e.nic.NIC(), e.engineDigest
			e.number = nodes[at.guest]
			nodes[at.guest]++
		}
	}
	if o.Confine != nil && !o.InProc {
		r.streams[0].gate = broker.NewGate(o.Broker, len(r.machines()), o.Confine)
	}
	return r, nil
}

// plan says what goes from where to where, and how. The description is complete.
func (r *rails) plan() error {
	var trees [2]*tree
	for i := range trees {
		t, nics, gpus := r.desc.Tree(i)
		trees[i] = &tree{t, nics, gpus}
	}
	used := make(map[place]int) // of GPUs
	for rail := range r.opt.Rails {
		r.add(rail, [2]int{0, 1}, trees, used)
		if r.opt.Bidir {
			r.add(rail, [2]int{1, 0}, trees, used)
		}
	}
	ways := r.ways()
	for i := 0; i < len(r.streams); i += ways {
		rail := r.streams[i : i+ways]
		room := uint64(math.MaxUint64)
		for _, s := range rail {
			part, err := s.share(&r.desc, used)
			if err != nil {
				return fmt.Errorf("rail %d: %w", s.is.Rail, err)
			}
			room = min(room, part)
		}
		for j, s := range rail {
			var err error
			if s.plan, err = s.opt.cut(room, room); err != nil {
				return fmt.Errorf("rail %d: %w", s.is.Rail, err)
			}
			s.ends[0].size, s.ends[1].size = s.plan.window(), s.plan.window()
			s.runner.opt, s.rail, s.stop = &s.opt, true, func() {}
			s.info = inProcInfo
			s.port = basePort + uint16(4*1000*j)
		}
	}
	return nil
}

// ways is how many directions a rail has.
func (r *rails) ways() int {
	if r.opt.Bidir {
		return 2
	}
	return 1
}

// tree is that of a guest, in which its NICs and GPUs have names.
type tree struct {
	*pcie.Tree
	nics, gpus []string
}

// add adds one direction of a rail. Either end takes the GPU that is nearest to its NIC, and of several as near the one
// that the fewest have taken.
func (r *rails) add(rail int, guests [2]int, trees [2]*tree, used map[place]int) {
	s := &stream{opt: *r.opt, is: Rail{Rail: rail}}
	s.opt.P2P = true
	s.opt.Seed ^= uint64(len(r.streams)+1) << 32
	worst := pcie.Same
	for i, guest := range guests {
		g, t := &r.desc.Guests[guest], trees[guest]
		n := &g.NICs[rail]
		at := place{guest: guest, nic: rail, gpu: -1}
		var way pcie.Path
		for j := range g.GPUs {
			if !n.Reaches(j) {
				continue
			}
			other := place{guest: guest, nic: rail, gpu: j}
			path := t.Path(t.nics[rail], t.gpus[j])
			if at.gpu < 0 || cmp.Or(cmp.Compare(path.Distance, way.Distance),
				cmp.Compare(used[other.ofGPU()], used[at.ofGPU()])) < 0 {
				at, way = other, path
			}
		}
		if worst = max(worst, way.Distance); !r.opt.away(guest) { // a host judges its own side
			s.opt.P2P = s.opt.P2P && way.P2P() && !r.desc.NoP2P
		}
		ram, cpus := r.opt.machine(guest)
		s.ends[i] = &end{name: n.Name, opt: &s.opt, log: r.opt.Log, ram: ram, cpus: cpus, base: uint64(used[at.ofGPU()]),
			addrs: [2]netip.Prefix{n.Addr4, n.Addr6}}
		used[at.ofGPU()]++
		s.at[i] = at
	}
	name := func(i int) string { return r.desc.Guests[guests[i]].Name + "." + trees[guests[i]].gpus[s.at[i].gpu] }
	s.is.From, s.is.FromGPU = s.ends[0].name, name(0)
	s.is.To, s.is.ToGPU = s.ends[1].name, name(1)
	s.is.Path, s.is.P2P = worst.String(), s.opt.P2P
	r.streams = append(r.streams, s)
}

// share has those that have taken the same GPU have equal parts of it, of which it gives the smaller one of both ends:
// an end's base has been its number among them. Of a node's memory each takes what the kernel gives it.
func (s *stream) share(d *lab.Description, used map[place]int) (room uint64, err error) {
	room = math.MaxUint64
	for i, e := range s.ends {
		at := s.at[i]
		g, n := &d.Guests[at.guest], uint64(used[at.ofGPU()])
		model := g.ModelOf(&g.NICs[at.nic])
		memory := g.GPUs[at.gpu].Memory
		part := guests.Usable(model, memory) / n &^ (guests.HugePage - 1)
		if part < leastRoom {
			least := n * leastRoom
			for guests.Usable(model, least)/n&^(guests.HugePage-1) < leastRoom || !model.Node && least&(least-1) != 0 {
				least += guests.HugePage
			}
			transfers := "a transfer"
			if n > 1 {
				transfers = fmt.Sprint(n, " transfers")
			}
			return 0, fmt.Errorf("%s has %s of memory, too small for %s at a NIC of model %s: %s at least",
				[]string{s.is.FromGPU, s.is.ToGPU}[i], lab.FormatBytes(memory), transfers, model.Name, lab.FormatBytes(least))
		}
		if e.base *= part; model.Node {
			e.base = 0
		}
		room = min(room, part)
	}
	return room, nil
}

// open makes the guests: stages boot and setup.
func (r *rails) open(ctx context.Context, im *machine.Images) error {
	if im == nil {
		return r.inProc(ctx)
	}
	if err := r.start(ctx, im); err != nil {
		return err
	}
	return r.setup(ctx, im)
}

// inProc makes guests in this process: of each NIC one stack, and a transfer.Node for each direction.
func (r *rails) inProc(ctx context.Context) error {
	for _, stage := range []string{"boot", "setup"} {
		if err := r.opt.stage(ctx, Step{Stage: stage}); err != nil {
			return err
		}
	}
	for _, s := range r.streams {
		for _, e := range s.here() {
			r.opt.alive.Set(e.title(), limit.Runs)
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

// start boots either machine once, with all its NICs and GPUs: those of the first transfer's ends, which are all
// others', too.
func (r *rails) start(ctx context.Context, im *machine.Images) error {
	first := r.streams[0]
	if err := first.start(ctx, im); err != nil {
		return err
	}
	for _, e := range r.ends() {
		for _, booted := range first.here() {
			if e.hw == booted.hw {
				e.qemu = booted.qemu
			}
		}
	}
	return nil
}

// ends are those of all transfers that are here.
func (r *rails) ends() (list []*end) {
	for _, s := range r.streams {
		list = append(list, s.here()...)
	}
	return list
}

// endsOf are those in a guest.
func (r *rails) endsOf(m *lab.Machine) []*end {
	return slices.DeleteFunc(r.ends(), func(e *end) bool { return e.hw != m })
}

// setup has both guests take their NICs: stage setup.
func (r *rails) setup(ctx context.Context, im *machine.Images) error {
	if err := r.opt.stage(ctx, Step{Stage: "setup"}); err != nil {
		return err
	}
	eg, ctx := errgroup.WithContext(ctx)
	for _, m := range r.machines() {
		eg.Go(func() error { return r.take(ctx, m) })
	}
	if err := eg.Wait(); err != nil {
		return im.BlameKernel(fmt.Errorf("set up its NICs: %w", err), qemu.NewerKernel)
	}
	return nil
}

// take has a guest take its NICs, with a Node for each end. The kernel knows their MACs, and says where they are.
func (r *rails) take(ctx context.Context, m *lab.Machine) error {
	ends := r.endsOf(m)
	limited := func(f func(context.Context) error) error {
		ctx, cancel := context.WithTimeout(ctx, r.opt.patience())
		defer cancel()
		if err := f(ctx); err != nil {
			return fmt.Errorf("guest %s: %w", m.Name, err)
		}
		return nil
	}
	var devices []string
	if err := limited(func(ctx context.Context) (err error) {
		devices, err = guests.Locate(ctx, ends[0].qemu.Agent(), m.Ports[:r.opt.Rails])
		return err
	}); err != nil {
		return err
	}
	for _, e := range ends {
		e.device = devices[slices.Index(m.Ports, e.nic)]
		if err := limited(e.setup); err != nil {
			return err
		}
	}
	return nil
}

// run transfers on all rails in one mode, and adds what came of it to the report.
func (r *rails) run(ctx context.Context, rep *Report, mode string, number uint64) error {
	before, carried := countersOf(r.ports()...), r.carried()
	eg, ctx := errgroup.WithContext(ctx)
	all := newBarrier(ctx, len(r.streams))
	rail := make([]*barrier, r.opt.Rails)
	for i := range rail {
		rail[i] = newBarrier(ctx, r.ways())
	}
	done := newProgress(r.opt, mode, len(r.streams))
	runs := make([]*Run, len(r.streams))
	for i, s := range r.streams {
		s.opt.Stage = func(step Step) {
			if i == 0 && r.opt.Stage != nil {
				r.opt.Stage(step)
			}
			switch {
			case step.Stage == "transfer" && step.Round == 1:
				all.wait()
				r.begun()
			case step.Stage != "prepare":
				rail[s.is.Rail].wait()
			}
		}
		s.opt.Progress = func(_ string, n, _ uint64) { done.set(i, n) }
		eg.Go(func() (err error) {
			if runs[i], err = s.runMode(ctx, s.plan, mode, number); err == nil {
				return nil
			}
			err = fmt.Errorf("%s to %s: %w", s.is.From, s.is.To, s.blameRemoval(err))
			if ctx.Err() != nil || !errors.Is(err, ErrRemoved) || s.gone() || r.peer != nil {
				return err
			}
			runs[i], s.lost = nil, err // the other rails go on
			all.leave()
			rail[s.is.Rail].leave()
			s.abandon(ctx)
			return nil
		})
	}
	if err := eg.Wait(); err != nil {
		return err
	}
	for _, s := range r.streams {
		s.loads = s.perByte(mode)
	}
	sum := Run{Mode: mode, SHA256Match: true, Seed: r.opt.Seed, Links: r.linksSince(carried),
		StackCopies: r.stackCopies(mode, runs)}
	model, limits := r.model()
	for i, s := range r.streams {
		if runs[i] == nil {
			continue
		}
		one := s.is
		one.Run = *runs[i]
		if model[i] < math.Inf(1) && r.peer == nil {
			one.Share = s.measure(runs[i], r.lab.Clock().Scale(), s.probe[mode], model[i], limits[i])
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

// abandon ends what is left in the guests of a transfer that is not to go on.
func (s *stream) abandon(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, limits.Ask.Here())
	defer cancel()
	var wg sync.WaitGroup
	for _, e := range s.here() {
		wg.Go(func() { _ = transfer.Finish(ctx, e.guest) }) // what it cannot give back went with the device
	}
	wg.Wait()
}

// awaitRemovals waits until what was to be removed is, for a while: it is told of then.
func (r *rails) awaitRemovals(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, limits.Ask.Here())
	defer cancel()
	r.lab.AwaitRemovals(ctx)
}

// ports are those of all rails.
func (r *rails) ports() (list []*nic.Port) {
	for _, m := range r.machines() {
		for _, p := range m.Ports[:r.opt.Rails] {
			list = append(list, p.NIC())
		}
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
	for i := range rep.Rails {
		x := &rep.Rails[i]
		s := r.streams[slices.IndexFunc(r.streams, func(s *stream) bool { return s.is.From == x.From && s.is.To == x.To })]
		if r.opt.MustShare && (x.Share == nil || x.Share.OfRate == nil) {
			errs = append(errs, fmt.Errorf("mode %s, %s to %s: no share: %s", x.Mode, x.From, x.To, x.Share.why()))
		}
		here := [2]bool{!s.ends[0].away(), !s.ends[1].away()}
		for _, wrong := range append(x.wrong(&s.opt, here), x.wrongAudit(here)...) {
			errs = append(errs, fmt.Errorf("mode %s, %s to %s: %s", x.Mode, x.From, x.To, wrong))
		}
		errs = append(errs, s.wrong...)
		s.wrong = nil
	}
	if r.lost() == nil { // else what was removed, and who had to do with it, has given nothing back
		for _, e := range r.ends() {
			errs = append(errs, e.empty())
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("%w:\n%w", ErrProof, err)
	}
	return nil
}

// close ends the guests, then the lab. What is under way of a guest's second Node ends before the first closes both.
func (r *rails) close() error {
	if !r.opt.InProc {
		return r.streams[0].Close() // which has both machines, and the lab
	}
	var eg errgroup.Group
	ctx, cancel := context.WithTimeout(context.Background(), r.opt.patience())
	defer cancel()
	for _, e := range r.ends() {
		if e.guest != nil {
			eg.Go(func() error { return transfer.Finish(ctx, e.guest) })
		}
	}
	_ = eg.Wait() // what it cannot give back goes with the device
	for _, n := range r.nodes {
		eg.Go(n.Close)
	}
	return errors.Join(eg.Wait(), r.lab.Close())
}

// barrier has some wait for each other, as often as they like, or for the end of a context.
//
// Both directions of a rail go from stage to stage together. While the kernel's gve binds or unbinds a receive queue it
// stops the transmit queues, and then starts them without having their disciplines run: what waits there goes out with
// the next packet, and TCP sends none, as it sends nothing again that is still there. So neither direction connects or
// transfers while the other one prepares or finishes.
type barrier struct {
	ctx     context.Context
	n       int
	mu      sync.Mutex
	waiting int
	all     chan struct{} // closed when all n are there
}

func newBarrier(ctx context.Context, n int) *barrier {
	return &barrier{ctx: ctx, n: n, all: make(chan struct{})}
}

// leave is of one that does not wait any more, while others do.
func (b *barrier) leave() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.n--; b.n > 0 && b.waiting == b.n {
		close(b.all)
		b.waiting, b.all = 0, make(chan struct{})
	}
}

func (b *barrier) wait() {
	b.mu.Lock()
	all := b.all
	if b.waiting++; b.waiting == b.n {
		close(all)
		b.waiting, b.all = 0, make(chan struct{})
	}
	b.mu.Unlock()
	select {
	case <-all:
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
