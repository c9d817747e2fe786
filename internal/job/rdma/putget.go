// Package rdma is `vnic rdma put` and `vnic rdma get`: the NIC of one guest writes or reads memory of another
// guest over RoCEv2 queue pairs (internal/rdma).
//
// The host fills the source from the seed and poisons the destination before each round, and, with
// Options.Verify, compares the bytes after the round. The NICs of both ends count in which memory payload
// lay, and how much was sent again.
package rdma

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/session"
	"vnic.dev/vnic/internal/transfer"
)

// ErrProof means that the results contradict the proof.
var ErrProof = errors.New("what was moved does not prove what it should")

// basePort is the first TCP port for the exchange of queue pair numbers. Each kind of memory has its own,
// because TCP keeps a connection's port busy for a minute (TIME_WAIT).
const basePort = 5401

// Do moves the data with each kind of memory, and returns the report, also with an ErrProof.
func Do(ctx context.Context, o *Options) (*Report, error) {
	return session.Do(ctx, &o.Options, func(s *session.Set, rep *Report) error {
		*rep = Report{Schema: 1, Info: s.Info, Op: o.Op, Size: o.Size, Block: o.Block, Depth: o.Depth, QPs: o.QPs,
			Rounds: o.Rounds, Loss: o.Loss, Seed: o.Seed}
		u := &use{opt: o, set: s, requester: s.Nodes[0], responder: s.Nodes[1]}
		return session.InModes("--mr ", o.MRs, func(i int, kind string) error {
			r, do := Run{Memory: kind, Rounds: o.Rounds}, u.run
			if kind == OnDemand {
				do = u.onDemand
			}
			err := do(ctx, &r, uint16(basePort+i))
			rep.Runs = append(rep.Runs, r)
			return err
		})
	}, (*Report).check)
}

type use struct {
	opt       *Options
	set       *session.Set
	requester *session.Node // its NIC accesses the responder's memory
	responder *session.Node
	begin     time.Time // when the rounds began, with OnDemand
}

// ends returns the guests of source and destination.
func (u *use) ends() (src, dst *session.Node) {
	if u.opt.Op == Get {
		return u.responder, u.requester
	}
	return u.requester, u.responder
}

func (u *use) run(ctx context.Context, r *Run, port uint16) error {
	o := u.opt
	if err := o.Begin(ctx, session.Step{Stage: "connect", Mode: r.Memory}); err != nil {
		return err
	}
	window, err := u.connect(ctx, r, port)
	if err != nil {
		return err
	}
	r.Requester, r.Responder = newEnd(u.requester), newEnd(u.responder)
	r.Verified = o.Verify
	x := exchange{wrong: func(first uint64) (string, error) { return u.digests(ctx, r, first) }}
	x.src, x.dst = u.ends()
	for round := range o.Rounds {
		x.move = func() error {
			return u.measure(ctx, r, uint64(round)*o.Size, func() error {
				for pos := uint64(0); pos < o.Size; pos += window {
					if err := u.move(ctx, r, pos, min(window, o.Size-pos)); err != nil {
						return err
					}
				}
				return nil
			})
		}
		if err := u.round(ctx, r, round, x); err != nil {
			return err
		}
	}
	if o.InProc {
		r.Requester.CPUPerGB, r.Responder.CPUPerGB = nil, nil
	}
	return u.end(ctx)
}

func (u *use) end(ctx context.Context) error {
	return u.set.Each(ctx, limits.Connect.Here(), func(ctx context.Context, g *session.Node) error {
		return transfer.CloseRDMA(ctx, g.Ops)
	})
}

// connect makes the guests' memory regions and queue pairs, and connects these. window is how many bytes of
// the data the regions hold at one time.
func (u *use) connect(ctx context.Context, r *Run, port uint16) (window uint64, err error) {
	o := u.opt
	conf := func(g *session.Node) transfer.RDMA {
		c := transfer.RDMA{Offer: g == u.responder, Read: o.Op == Get, Memory: r.Memory, GPU: g.GPU.ID(),
			Data: transfer.Area{Bytes: session.Pages(o.Size)},
			QPs:  o.QPs, Depth: o.Depth, PathMTU: uint16(o.PathMTU)}
		// With OnDemand the requester also reads the bytes back, behind the source.
		if c.Both = r.Memory == OnDemand; c.Both && !c.Offer {
			c.Memory, c.Data.Bytes = GPU, 2*c.Data.Bytes
		}
		if f, err := o.faults(); c.Both && err == nil {
			c.Spare, c.Owner = f.ends(), c.Offer && f.kill > 0
		}
		return c
	}
	addr := func(g *session.Node) netip.Addr { return g.Config.Addr().Addr() }
	peer := netip.AddrPortFrom(addr(u.responder), port)
	for _, g := range []*session.Node{u.responder, u.requester} { // the responder listens
		c := conf(g)
		c.Local, c.Remote = netip.AddrPortFrom(addr(g), 0), peer
		if c.Offer {
			c.Local = peer
		}
		info, err := transfer.OpenRDMA(ctx, g.Ops, c)
		if err != nil {
			return 0, fmt.Errorf("guest %s: %w", g.Name, err)
		}
		if window == 0 || info.Window < window {
			window = info.Window
		}
	}
	return window, u.set.Each(ctx, limits.Connect.Here(), func(ctx context.Context, g *session.Node) error {
		path, err := transfer.ConnectRDMA(ctx, g.Ops)
		if err == nil && g == u.requester {
			r.PathMTU = int(path.MTU)
		}
		return err
	})
}

type exchange struct {
	src, dst *session.Node
	off      uint64 // offset of the destination in dst's memory
	move     func() error
	wrong    func(first uint64) (string, error) // describes an error; first is the first wrong byte, or Size
}

func (u *use) round(ctx context.Context, r *Run, round int, x exchange) error {
	o := u.opt
	begin := func(stage string) error {
		return o.Begin(ctx, session.Step{Stage: stage, Mode: r.Memory, Round: round + 1, Rounds: max(o.Rounds, round+1)})
	}
	if err := begin("prepare"); err != nil {
		return err
	}
	gen := session.Pattern(o.Seed + uint64(round))
	if err := errors.Join(x.src.Fill(ctx, 0, o.Size, gen),
		x.dst.Poison(ctx, x.off, o.Size, session.Poison)); err != nil {
		return err
	}
	if err := begin("transfer"); err != nil {
		return err
	}
	if err := x.move(); err != nil {
		return err
	}
	if o.moved != nil {
		o.moved(u.set, r, round)
	}
	if !o.Verify {
		return nil
	}
	if err := begin("verify"); err != nil {
		return err
	}
	first, err := x.dst.Differs(ctx, x.off, o.Size, gen)
	if err != nil {
		return err
	}
	wrong, err := x.wrong(first)
	if wrong != "" && r.Error == "" {
		r.Verified, r.Error = false, fmt.Sprintf("round %d: %s", round+1, wrong)
	}
	return err
}

// digests sets r's digests of source and destination. first is the first wrong byte, or Size; wrong describes an error,
// and is empty if there is none.
func (u *use) digests(ctx context.Context, r *Run, first uint64) (wrong string, err error) {
	src, dst := u.ends()
	a, err1 := src.SHA256(ctx, 0, u.opt.Size)
	b, err2 := dst.SHA256(ctx, 0, u.opt.Size)
	if err := errors.Join(err1, err2); err != nil {
		return "", err
	}
	r.SourceSHA256, r.SHA256 = hex.EncodeToString(a[:]), hex.EncodeToString(b[:])
	switch {
	case first < u.opt.Size:
		wrong = fmt.Sprintf("byte %d at guest %s is not what guest %s had", first, dst.Name, src.Name)
	case a != b:
		wrong = fmt.Sprintf("the memory of guest %s, which is the source, has changed", src.Name)
	}
	return wrong, nil
}

// move moves n bytes at pos, which fit the memory regions. MoveRDMA does not ask the responder, so move watches whether
// the responder lives.
func (u *use) move(ctx context.Context, r *Run, pos, n uint64) error {
	ctx, end := u.responder.Lives(ctx)
	defer end()
	src, dst := u.ends()
	if err := transfer.StageRDMA(ctx, src.Ops, transfer.RDMAStage{Off: pos, Len: n}); err != nil {
		return fmt.Errorf("guest %s: %w", src.Name, err)
	}
	res, err := transfer.MoveRDMA(ctx, u.requester.Ops, transfer.RDMAMove{Off: pos, Len: n, Block: uint32(u.opt.Block)})
	if err != nil {
		return fmt.Errorf("guest %s: %s: %w", u.requester.Name, u.opt.Op, session.OrCause(ctx, err))
	}
	r.add(&res)
	if err := transfer.StageRDMA(ctx, dst.Ops, transfer.RDMAStage{Off: pos, Len: n, Back: true}); err != nil {
		return fmt.Errorf("guest %s: %w", dst.Name, err)
	}
	return nil
}

func (r *Run) add(res *transfer.RDMAResult) {
	r.Bytes += res.Bytes
	r.Requests += res.Requests
	r.Seconds += res.Seconds
}

// snapshot has counters of both ends, the requester's first.
type snapshot struct {
	out, in control.RDMACounts // of the requester's requests: as the requester, and as the responder counts
	icrc    [2]uint64
	cpu     [2]transfer.CPU
}

func (u *use) counts() (s snapshot, err error) {
	a, err1 := u.requester.Port.NIC().RDMACounts()
	b, err2 := u.responder.Port.NIC().RDMACounts()
	return snapshot{out: a.Out, in: b.In, icrc: [2]uint64{a.ICRC, b.ICRC}}, errors.Join(err1, err2)
}

func (u *use) snapshot(ctx context.Context) (snapshot, error) {
	s, err := u.counts()
	for i, g := range []*session.Node{u.requester, u.responder} {
		if err == nil {
			s.cpu[i], err = transfer.CPUTime(ctx, g.Ops)
		}
	}
	return s, err
}

// measure calls f, which moves a round's data, and adds the NICs' counts and the guests' CPU time. done is
// how many bytes earlier rounds moved.
func (u *use) measure(ctx context.Context, r *Run, done uint64, f func() error) error {
	before, err := u.snapshot(ctx)
	if err != nil {
		return err
	}
	stop := u.watch(r.Memory, done, &before)
	err = f()
	stop()
	if err != nil {
		return err
	}
	session.Settle(ctx, func() bool { // a NIC counts a packet after it has delivered it
		now, err := u.counts()
		return err != nil || placed(&now.out)-placed(&before.out) >= u.opt.Size &&
			placed(&now.in)-placed(&before.in) >= u.opt.Size
	})
	now, err := u.snapshot(ctx)
	if err != nil {
		return err
	}
	gb := float64(u.opt.Size*uint64(u.opt.Rounds)) / 1e9
	for i, x := range []struct {
		end         *End
		now, before *control.RDMACounts
	}{{&r.Requester, &now.out, &before.out}, {&r.Responder, &now.in, &before.in}} {
		x.end.add(x.now, x.before, gb, max(0, now.cpu[i].Work()-before.cpu[i].Work()))
		x.end.ICRC += now.icrc[i] - before.icrc[i]
	}
	// The progress that watch shows may lag if READs were repeated.
	u.progress(r.Memory, done+u.opt.Size)
	return nil
}

// placed returns the payload in all kinds of memory.
func placed(c *control.RDMACounts) uint64 { return c.DeviceBytes + c.GPUFileBytes + c.HostBytes }

func (u *use) progress(mode string, bytes uint64) {
	o := u.opt
	if mode == OnDemand && o.Time > 0 {
		o.Show(mode, uint64(min(time.Since(u.begin), o.Time)), uint64(o.Time))
		return
	}
	all := o.Size * uint64(o.Rounds) // with faults there may be more rounds
	o.Show(mode, min(bytes, all), all)
}

// showEvery is the interval of watch, which reads the NIC's counters.
const showEvery = 200 * time.Millisecond

func (u *use) watch(mode string, done uint64, before *snapshot) (stop func()) {
	if u.opt.Progress == nil {
		return func() {}
	}
	quit, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		t := time.NewTicker(showEvery)
		defer t.Stop()
		for {
			select {
			case <-quit:
				return
			case <-t.C:
			}
			now, err := u.counts()
			if err != nil {
				return
			}
			moved := placed(&now.out) - now.out.AgainBytes - (placed(&before.out) - before.out.AgainBytes)
			u.progress(mode, done+min(moved, u.opt.Size))
		}
	}()
	return func() {
		close(quit)
		<-ended
	}
}
