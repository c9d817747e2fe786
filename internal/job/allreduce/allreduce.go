// Package allreduce is `vnic allreduce`: collective operations on the GPU memory of guests in a ring. It prints
// the columns of nccl-tests, and checks the results and where payload lay.
//
// Every guest is a rank: its transfer.Node uses package collective. The host fills each GPU's memory with
// elements that it computes from the seed, makes the ranks do the operation, and, with Options.Validate,
// compares the elements of the result with a reference: scalar code, in the order of the ring. The NICs'
// counters of payload must equal, without retransmissions, what the operation passes on; in mode devmem, with
// peer-to-peer, all of it must be in device memory, else none of it.
package allreduce

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/report"
	"vnic.dev/vnic/internal/session"
	"vnic.dev/vnic/internal/transfer"
)

// ErrProof means that the operations ended, but elements of the result or counters of payload are wrong.
var ErrProof = errors.New("the operations do not prove what they should")

// basePort is the first port on which ranks listen, in the first of Options.Modes. Each mode has its own ports,
// because TCP keeps a connection's ports busy for a minute (TIME_WAIT).
const basePort = 5301

// Do makes the lab, does the operations in each mode, and returns the report, also with an ErrProof.
// With another error there is no report.
func Do(ctx context.Context, o *Options) (*Report, error) {
	return session.Do(ctx, &o.Options, func(s *session.Set, rep *Report) error {
		*rep = Report{Schema: 1, Info: s.Info, Op: o.Op, Type: o.Type.String(), Ranks: len(s.Nodes), Channels: o.Channels,
			Iters: o.Iters, Warmup: o.Warmup, Root: -1, Timeout: o.silence().Seconds(), Loss: o.Loss, Seed: o.Seed}
		if o.Op == transfer.Broadcast {
			rep.Root = o.Root
		}
		r := &ring{Options: o, set: s, place: o.layout(len(s.Nodes)), rep: rep}
		return session.InModes("", o.Modes, func(i int, mode string) error {
			return r.mode(ctx, mode, uint16(basePort+100*i))
		})
	}, (*Report).check)
}

type ring struct {
	*Options
	set    *session.Set
	place  layout
	rep    *Report
	meters []meter
	sums   []Rank
}

// meter has the IDs of a rank's flow counters, two for each channel: one of out counts the payload to the next rank,
// one of in the payload from the previous one. A single rank has none.
type meter struct{ out, in []uint32 }

// hello is the length of the message with which each connection of a ring begins, in bytes (package collective).
const hello = 16

// mode joins the guests to a ring, does the operations for each of o.Counts, and adds the mode's results to the report.
func (r *ring) mode(ctx context.Context, mode string, port uint16) error {
	o, n := r.Options, len(r.set.Nodes)
	if err := o.Begin(ctx, session.Step{Stage: "connect", Mode: mode}); err != nil {
		return err
	}
	addr := func(i int, port uint16) netip.AddrPort {
		c := r.set.Nodes[(i+n)%n].Config
		return netip.AddrPortFrom(c.Addr().Addr(), port)
	}
	r.meters, r.sums = make([]meter, n), make([]Rank, n)
	ranks := make([]transfer.Rank, n)
	for i, g := range r.set.Nodes {
		c := g.Config
		ranks[i] = transfer.Rank{Rank: i, Ranks: n, GPU: g.GPU.ID(), Data: r.place.data, Pool: r.place.pool,
			Scratch: r.place.scratch, Queues: c.Queues(), Listen: addr(i, port), From: addr(i, port+1),
			Next: addr(i+1, port), Timeout: o.silence(),
			Copy: mode == transfer.Copy}
		r.sums[i] = Rank{Rank: i, Guest: g.Name, NIC: g.Port.Model.Name, P2P: g.P2P}
		if n == 1 {
			continue
		}
		m := &r.meters[i]
		count := func(to *[]uint32, local, remote netip.AddrPort) error {
			id, err := g.Port.NIC().AddFlowCounter(control.FlowCounter{Proto: 6, Local: local, Remote: remote})
			*to = append(*to, id)
			return err
		}
		for c := range uint16(o.Channels) {
			if err := errors.Join(count(&m.out, addr(i, port+2*c+1), addr(i+1, port+2*c)),
				count(&m.in, addr(i, port+2*c), addr(i-1, port+2*c+1))); err != nil {
				return err
			}
		}
		defer func() {
			for _, id := range append(m.out, m.in...) {
				_ = g.Port.NIC().DelFlowCounter(id)
			}
		}()
	}
	if err := r.all(ctx, func(ctx context.Context, i int, g *session.Node) error {
		return transfer.Join(ctx, g.Ops, ranks[i])
	}); err != nil {
		return fmt.Errorf("join: %w", err)
	}
	hellos := uint64(o.Channels) * hello
	r.settle(ctx, make([]counts, n), func(int) (out, in uint64) { return hellos, hellos })
	if err := o.Begin(ctx, session.Step{Stage: "transfer", Mode: mode}); err != nil {
		return err
	}
	m := Mode{Mode: mode}
	cpu := new(float64)
	for i, count := range o.Counts {
		if o.Progress != nil {
			o.Progress(mode, uint64(i), uint64(len(o.Counts)))
		}
		row, err := r.row(ctx, count, cpu)
		if err != nil {
			return fmt.Errorf("%d elements: %w", count, err)
		}
		m.Rows = append(m.Rows, *row)
		if o.done != nil {
			o.done(r.sums, row)
		}
	}
	if o.Progress != nil {
		o.Progress(mode, uint64(len(o.Counts)), uint64(len(o.Counts)))
	}
	leave := func(ctx context.Context, _ int, g *session.Node) error { return transfer.Leave(ctx, g.Ops) }
	if err := r.all(ctx, leave); err != nil {
		return fmt.Errorf("leave: %w", err)
	}
	m.Ranks = r.sums
	m.sum(cpu, o.InProc)
	r.rep.Modes = append(r.rep.Modes, m)
	return nil
}

// sum computes Bus, Wrong and CPUPerGB of a mode from its Rows and Ranks; cpu is the guests' processor time, in
// seconds.
func (m *Mode) sum(cpu *float64, inProc bool) {
	for i := range m.Rows {
		for _, h := range []*Half{&m.Rows[i].OutOfPlace, &m.Rows[i].InPlace} {
			m.Bus += h.Bus / float64(2*len(m.Rows))
			if h.Wrong != nil {
				m.Wrong += *h.Wrong
			}
		}
	}
	if passed := m.Ranks[0].Expected.Out; !inProc && passed > 0 {
		*cpu /= float64(passed) / 1e9
		m.CPUPerGB = cpu
	}
}

// all calls f for all ranks at the same time, and returns all their errors. After a rank's error it waits for the
// others, whose own errors describe the failure better, but cancels them when twice the time-out and limits.Ask have
// passed.
func (r *ring) all(ctx context.Context, f func(ctx context.Context, i int, g *session.Node) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	errs := make([]error, len(r.set.Nodes))
	var work sync.WaitGroup
	var once sync.Once
	var timer *time.Timer
	late := 2*r.silence() + limits.Ask.Here() // an emulated guest may answer slowly
	for i, g := range r.set.Nodes {
		work.Go(func() {
			if errs[i] = f(ctx, i, g); errs[i] != nil {
				once.Do(func() {
					timer = time.AfterFunc(late, func() {
						cancel(fmt.Errorf("no answer %v after another rank's error", late))
					})
				})
			}
		})
	}
	work.Wait()
	if timer != nil {
		timer.Stop()
	}
	var list []error
	for i, err := range errs {
		if err != nil {
			list = append(list, fmt.Errorf("rank %d (%s): %w", i, r.set.Nodes[i].Name, err))
		}
	}
	slices.SortStableFunc(list, func(a, b error) int { return blame(a) - blame(b) })
	return errors.Join(list...)
}

// blame returns the sort key of an error: errors that name a silent neighbour come first.
func blame(err error) int {
	if strings.Contains(err.Error(), "no progress for ") { // text of devmem.StallError
		return 0
	}
	return 1
}

func (r *ring) row(ctx context.Context, count uint64, cpu *float64) (*Row, error) {
	row := &Row{Bytes: count * r.Type.Size(), Count: count}
	for _, h := range []struct {
		to   *Half
		from *uint64
	}{{&row.OutOfPlace, &r.place.from}, {&row.InPlace, nil}} {
		x := &expected{op: r.Op, t: r.Type, ranks: len(r.set.Nodes), root: r.Root, count: count,
			parts: r.Channels, seed: mix(r.Seed ^ count)}
		if h.from != nil {
			x.seed = mix(x.seed)
		}
		if err := r.half(ctx, x, h.from, h.to, cpu); err != nil {
			return nil, err
		}
	}
	return row, nil
}

// half measures Iters operations after Warmup others. With Validate it then does one operation on fresh elements,
// and compares the result.
func (r *ring) half(ctx context.Context, x *expected, from *uint64, h *Half, cpu *float64) error {
	c := transfer.CollectiveArgs{Op: x.op, Type: x.t, Off: r.place.to, Count: x.count, Root: x.root, From: from,
		Times: r.Iters, Warm: r.Warmup}
	if err := r.fill(ctx, x, from); err != nil {
		return err
	}
	seconds, err := r.operate(ctx, x, c, cpu)
	if err != nil {
		return err
	}
	each := seconds / float64(r.Iters)
	h.Microseconds = each * 1e6
	if each > 0 {
		h.Alg = float64(x.count*x.t.Size()) / each / 1e9
	}
	h.Bus = h.Alg * bus(x.op, x.ranks)
	if !r.Validate {
		return nil
	}
	if err := r.fill(ctx, x, from); err != nil {
		return err
	}
	c.Times, c.Warm = 1, 0
	if _, err := r.operate(ctx, x, c, cpu); err != nil {
		return err
	}
	if r.tamper != nil {
		r.tamper(r.set)
	}
	wrong, err := r.compare(ctx, x)
	h.Wrong = &wrong
	return err
}

// fill writes the ranks' elements to GPU memory. If from is set (out of place), it also fills the memory of the result
// with 0xff.
func (r *ring) fill(ctx context.Context, x *expected, from *uint64) error {
	return r.set.Each(ctx, 0, func(ctx context.Context, g *session.Node) error {
		rank, size := slices.Index(r.set.Nodes, g), x.t.Size()
		n, place := x.count*size, r.place.data.Off+r.place.to
		if from != nil {
			if err := g.Poison(ctx, place, n, 0xff); err != nil {
				return err
			}
			place = r.place.data.Off + *from
		}
		return g.Fill(ctx, place, n, func(b []byte, pos uint64) { fill(b, x.t, x.seed, rank, pos/size) })
	})
}

// operate makes the ranks do operations. It adds the expected payload and the payload that their NICs counted to
// r.sums, and the guests' processor time to cpu, for warm-ups in proportion to their number. It returns the slowest
// rank's time, without the warm-up.
func (r *ring) operate(ctx context.Context, x *expected, c transfer.CollectiveArgs, cpu *float64) (seconds float64,
	err error) {
	before := r.read()
	results := make([]transfer.CollectiveResult, len(r.set.Nodes))
	if err := r.all(ctx, func(ctx context.Context, i int, g *session.Node) (err error) {
		results[i], err = transfer.Collective(ctx, g.Ops, c)
		return err
	}); err != nil {
		return 0, err
	}
	times := uint64(c.Times + c.Warm)
	expected := func(i int) (out, in uint64) { return times * x.passes(i), times * x.passes((i+x.ranks-1)%x.ranks) }
	r.settle(ctx, before, expected)
	now := r.read()
	for i := range results {
		s, res := &r.sums[i], &results[i]
		out, in := expected(i)
		s.Expected.Out += out
		s.Expected.In += in
		s.Out.Add(now[i].out, before[i].out)
		s.In.Add(now[i].in, before[i].in)
		s.Looked += res.Stats.Looked
		s.Linear += res.Stats.Linear
		s.Retransmitted += res.Retransmits
		seconds = max(seconds, res.Seconds)
		*cpu += res.CPU.Work() * float64(times) / float64(c.Times)
	}
	return seconds, nil
}

type counts struct{ out, in control.DirCounters }

func (r *ring) read() []counts {
	list := make([]counts, len(r.set.Nodes))
	for i, g := range r.set.Nodes {
		if len(list) == 1 {
			break
		}
		for _, id := range r.meters[i].out {
			c, _ := g.Port.NIC().ReadFlowCounter(id)
			list[i].out.Add(c.Tx)
		}
		for _, id := range r.meters[i].in {
			c, _ := g.Port.NIC().ReadFlowCounter(id)
			list[i].in.Add(c.Rx)
		}
	}
	return list
}

// settle waits until each rank i's NIC has counted payload(i) bytes since before was read, without retransmissions, but
// at most for limits.Counted times limits.Slow.
func (r *ring) settle(ctx context.Context, before []counts, payload func(i int) (out, in uint64)) {
	if len(before) == 1 {
		return
	}
	since := func(now, before control.DirCounters) uint64 { // without retransmissions
		return session.Payload(now) - now.RetransBytes - (session.Payload(before) - before.RetransBytes)
	}
	session.Settle(ctx, func() bool {
		now, done := r.read(), true
		for i := range now {
			out, in := payload(i)
			done = done && since(now[i].out, before[i].out) >= out && since(now[i].in, before[i].in) >= in
		}
		return done
	})
}

func (r *ring) compare(ctx context.Context, x *expected) (wrong uint64, err error) {
	var mu sync.Mutex
	err = r.set.Each(ctx, 0, func(ctx context.Context, g *session.Node) error {
		first, n := x.share(slices.Index(r.set.Nodes, g))
		size := x.t.Size()
		return g.Each(ctx, r.place.data.Off+r.place.to+first*size, n*size, func(b []byte, pos uint64) error {
			k := x.wrong(b, first+pos/size)
			mu.Lock()
			wrong += k
			mu.Unlock()
			return nil
		})
	})
	return wrong, err
}

// wrongCount describes the first of a rank's counters that is not as expected, or has payload in memory in which it
// must not be in this mode; "": none.
func (x *Rank) wrongCount(mode string) string {
	out, in := x.Out.Device+x.Out.Host-x.Out.Retransmitted, x.In.Device+x.In.Host-x.In.Retransmitted
	switch {
	case out != x.Expected.Out:
		return fmt.Sprintf("%d bytes out, without those that were sent again, and not %d", out, x.Expected.Out)
	case in != x.Expected.In:
		return fmt.Sprintf("%d bytes in, without those that were sent again, and not %d", in, x.Expected.In)
	case mode == transfer.Devmem && x.P2P && (x.Out.Host > 0 || x.In.Host > 0 || x.Linear > 0):
		return fmt.Sprintf("payload in host memory: %d bytes out, %d in", x.Out.Host, x.In.Host)
	case mode == transfer.Devmem && !x.P2P && (x.Out.Device > 0 || x.In.Device > 0):
		return fmt.Sprintf("without peer-to-peer payload in device memory: %d bytes out, %d in", x.Out.Device, x.In.Device)
	case mode == transfer.Copy && (x.Out.Device > 0 || x.In.Device > 0):
		return fmt.Sprintf("payload in device memory: %d bytes out, %d in", x.Out.Device, x.In.Device)
	}
	return ""
}

// check returns an ErrProof if elements were wrong, or a rank's counters (wrongCount).
func (r *Report) check() error {
	var f report.Findings
	for i := range r.Modes {
		m := &r.Modes[i]
		f.If(m.Wrong > 0, "mode %s: %d elements are wrong", m.Mode, m.Wrong)
		for j := range m.Ranks {
			wrong := m.Ranks[j].wrongCount(m.Mode)
			f.If(wrong != "", "mode %s, rank %d: %s", m.Mode, j, wrong)
		}
	}
	return f.Err(ErrProof)
}
