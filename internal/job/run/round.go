package run

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"vnic.dev/vnic/gpumem"
	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/session"
	"vnic.dev/vnic/internal/transfer"
)

// round is one transfer of n bytes.
type round struct {
	s              *stream
	mode           string
	number, rounds int
	n, seed        uint64
	send, recv     transfer.PrepareArgs
	from, to       netip.AddrPort
	source         sum // digest of the source, by this host or the host that sends; zero unless Digest is DigestPieces
	flows          *flowCounters
	sent, got      transfer.Result
	start          time.Time
	took           time.Duration
	before         totals
	noBuffer       uint64
	samples        *sampler
}

func (s *stream) newRound(mode string, number int, n, seed uint64, port uint16) *round {
	a, b, p := s.ends[0], s.ends[1], &s.plan
	t := &round{s: s, mode: mode, number: number, rounds: len(p.rounds), n: n, seed: seed,
		from: netip.AddrPortFrom(a.addr.Addr(), port), to: netip.AddrPortFrom(b.addr.Addr(), port)}
	stall := int(s.opt.patience()/time.Second) + 3 // longer than the limit of watch, whose error has both ends' states
	if !a.away() {
		t.send = transfer.PrepareArgs{Mode: mode, Send: true, GPU: a.GPU.ID(), Off: a.base, Bytes: session.Pages(n), Len: n,
			Seed: seed, Local: t.from, Remote: t.to, StallSeconds: stall}
	}
	if b.away() {
		return t
	}
	t.recv = transfer.PrepareArgs{Mode: mode, GPU: b.GPU.ID(), Off: b.base + p.pool, Bytes: session.Pages(n), Len: n,
		Seed: ^seed, Local: t.to, Remote: t.from, PoolOff: b.base, PoolBytes: p.pool, Queues: b.Config.Queues(),
		StallSeconds: stall}
	if mode == transfer.Devmem && s.opt.HoldTokens > 0 {
		t.recv.Hold, t.recv.HoldSeconds = s.opt.HoldTokens*page, holdTime
	}
	return t
}

// run makes the transfer, verifies it, and adds its results to r; wrong bytes are no error, but in r. After an error
// the transfer may be unfinished in a guest (transfer.Finish).
func (t *round) run(ctx context.Context, r *Run) error {
	s, a, b := t.s, t.s.ends[0], t.s.ends[1]
	if err := t.stage(ctx, "prepare"); err != nil {
		return err
	}
	digested := func() error { return nil }
	digesting, cancel := context.WithCancel(ctx)
	defer func() {
		cancel()
		_ = digested()
	}()
	// Besides patience, a second (times limits.Slow) for each 64 MiB: engines are far faster.
	fill := s.opt.patience() + limits.Limit(time.Duration(t.n>>26)*time.Second).Here()
	if err := s.onBoth(ctx, fill, func(ctx context.Context) error {
		if err := transfer.Prepare(ctx, a.Ops, t.send); err != nil {
			return err
		}
		if s.opt.InProc {
			digested = t.digestIdle(digesting)
			return nil
		}
		return t.digestSource(ctx, nil)
	}, func(ctx context.Context) error {
		if err := transfer.Prepare(ctx, b.Ops, t.recv); err != nil {
			return err
		}
		return s.poisoned(ctx, b, t.recv)
	}); err != nil {
		return fmt.Errorf("prepare: %w", err)
	}
	var err error
	if t.flows, err = s.addFlowCounters(t.from, t.to); err != nil {
		return err
	}
	defer t.flows.remove()
	if err := t.connect(ctx); err != nil {
		return err
	}
	if err := t.stage(ctx, "transfer"); err != nil {
		return err
	}
	if _, err := t.step(ctx, "transfer", ""); err != nil {
		return err
	}
	if err := t.move(ctx, r.Bytes); err != nil {
		return err
	}
	if err := digested(); err != nil {
		return err
	}

	if err := t.stage(ctx, "verify"); err != nil {
		return err
	}
	if err := t.moved(ctx); err != nil {
		return err
	}
	t.flows.settle(ctx, t.n)
	t.account(r)
	if err := t.verify(ctx, r); err != nil {
		return err
	}
	if err := s.audit(ctx, r, gpumem.Stream{Seed: t.seed, Bytes: t.n}); err != nil {
		return err
	}
	// Finish ends the transfer in each guest, so that the next round can begin one.
	if err := s.onBoth(ctx, s.opt.patience(), func(ctx context.Context) error { return transfer.Finish(ctx, a.Ops) },
		func(ctx context.Context) error { return transfer.Finish(ctx, b.Ops) }); err != nil {
		return fmt.Errorf("finish: %w", err)
	}
	return nil
}

func (t *round) connect(ctx context.Context) error {
	s, a, b := t.s, t.s.ends[0], t.s.ends[1]
	if err := t.stage(ctx, "connect"); err != nil {
		return err
	}
	listen := func(ctx context.Context) error { return transfer.Listen(ctx, b.Ops) }
	if err := s.onBoth(ctx, s.opt.patience(), nil, listen); err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	if _, err := t.step(ctx, "listen", ""); err != nil {
		return err
	}
	if err := s.onBoth(ctx, s.opt.patience(), func(ctx context.Context) error { return transfer.Connect(ctx, a.Ops) },
		func(ctx context.Context) error { return transfer.Accept(ctx, b.Ops) }); err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	return nil
}

func (e *end) empty() error {
	list, err := e.nic().Buffers()
	if err == nil && len(list) > 0 {
		err = fmt.Errorf("guest %s left %d buffers registered: %+v", e.Name, len(list), list)
	}
	return err
}

func (t *round) stage(ctx context.Context, name string) error {
	return t.s.opt.Begin(ctx, Step{Stage: name, Mode: t.mode, Round: t.number, Rounds: t.rounds})
}

// digestIdle starts a goroutine that calls digestSource, at low priority, to run during the transfer. finish raises the
// priority, waits for digestSource, and returns its error. digestIdle is for guests in this process.
func (t *round) digestIdle(ctx context.Context) (finish func() error) {
	hurry := make(chan struct{})
	var eg errgroup.Group
	undo := addProcs(1)
	eg.Go(func() error { return t.digestSource(ctx, hurry) })
	return sync.OnceValue(func() error {
		defer undo()
		close(hurry)
		return eg.Wait()
	})
}

// move transfers the data. base is how many bytes the mode's earlier rounds have moved, for Options.Progress.
func (t *round) move(ctx context.Context, base uint64) error {
	a, b := t.s.ends[0], t.s.ends[1]
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := make(chan struct{})
	var watching sync.WaitGroup
	t.before, t.noBuffer = t.s.counters(), t.s.noBuffer()
	t.s.links.begin()
	t.start = time.Now()
	watching.Go(func() { t.watch(ctx, done, cancel, base) })
	if t.samples = t.s.opt.Recorder.sample(t, t.start); t.samples != nil {
		watching.Go(func() { t.samples.follow(done) })
	}
	ended := func() {
		t.took = time.Since(t.start)
		t.s.links.end()
	}
	err := both(ctx, func(ctx context.Context) (err error) {
		if a.away() {
			t.sent.Bytes = t.n // the sender's host checks the number
			return nil
		}
		if t.sent, err = transfer.Send(ctx, a.Ops); b.away() {
			ended()
		}
		return err
	}, func(ctx context.Context) (err error) {
		if b.away() {
			t.got.Bytes = t.n
			return nil
		}
		t.got, err = transfer.Receive(ctx, b.Ops)
		ended()
		return err
	})
	close(done)
	watching.Wait()
	if err == nil {
		if t.sent.Bytes != t.n || t.got.Bytes != t.n {
			return fmt.Errorf("the guests report %d bytes sent and %d received, of %d", t.sent.Bytes, t.got.Bytes, t.n)
		}
		return nil
	}
	var stalled *stallError
	switch {
	case errors.As(context.Cause(ctx), &stalled):
		return stalled
	case t.s.gone(): // a guest has ended: runner.blame will add which one
		return err
	}
	return fmt.Errorf("%w%s", err, t.s.states(ctx))
}

// stallError means that a round made no progress for the time limit, after done of its total bytes.
type stallError struct {
	limit       time.Duration
	done, total uint64
	states      string
}

func (e *stallError) Error() string {
	return fmt.Sprintf("no progress for %v after %d of %d bytes%s\n--keep keeps the consoles and counters of another try",
		e.limit, e.done, e.total, e.states)
}

// watch passes progress to Options.Progress until done is closed. If for a time limit (Options.patience at the begin)
// no new payload is counted (flowCounters.moved), and the engines of the NICs on this host copy nothing, with Bidir for
// the other direction too, watch calls fail with a stallError and returns. The guests need not answer for that.
func (t *round) watch(ctx context.Context, done <-chan struct{}, fail context.CancelCauseFunc, base uint64) {
	limit := t.s.opt.patience()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	var last uint64
	for since := time.Now(); ; {
		count := t.flows.moved()
		have := min(t.n, session.Payload(count))
		if t.s.opt.Progress != nil {
			t.s.opt.Progress(t.mode, base+have, t.s.opt.Size)
		}
		if moved := session.Payload(count) - count.RetransBytes + t.s.counters().engine; moved != last {
			last, since = moved, time.Now()
		} else if time.Since(since) >= limit {
			fail(&stallError{limit: limit, done: have, total: t.n, states: t.s.states(ctx)})
			return
		}
		select {
		case <-done:
			return
		case <-tick.C:
		}
	}
}

// states returns a line for each end: its TCP state, or why it is unknown, or that the end is on the other host.
func (s *stream) states(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limits.AskState.Here())
	defer cancel()
	var states [2]string
	var wg sync.WaitGroup
	for i, e := range s.ends {
		if e.away() {
			states[i] = "on the other host"
			continue
		}
		wg.Go(func() { states[i] = transfer.State(ctx, e.Ops) })
	}
	wg.Wait()
	return fmt.Sprintf("\nsender A:   %s\nreceiver B: %s", states[0], states[1])
}
