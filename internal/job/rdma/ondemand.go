package rdma

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"slices"
	"syscall"
	"time"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/session"
	"vnic.dev/vnic/internal/transfer"
)

const (
	maxRate = 1e6
	maxTime = 24 * time.Hour
)

func (o *Options) onDemand() bool { return slices.Contains(o.MRs, OnDemand) }

// completeOnDemand checks the options for pages on demand, and sets options that follow from them.
func (o *Options) completeOnDemand() error {
	if !o.onDemand() {
		switch {
		case o.Pages != 0 || o.Migrate != 0 || o.Compact || o.Time != 0 || o.Fault != "":
			return fmt.Errorf("--pages, --migrate, --compact, --time and --fault are of --mr %s", OnDemand)
		}
		return nil
	}
	switch {
	case o.InProc:
		return fmt.Errorf("--mr %s: a kernel moves the pages: not with --guest inproc", OnDemand)
	case o.Pages < 0 || o.Pages > 1<<18:
		return fmt.Errorf("--pages %d: 1 to %d, of %d bytes", o.Pages, 1<<18, devmem.PageSize)
	case o.Migrate < 0 || o.Migrate > maxRate:
		return fmt.Errorf("--migrate %g: 0 to %g pages a second", o.Migrate, float64(maxRate))
	case o.Time < 0 || o.Time > maxTime:
		return fmt.Errorf("--time %v: up to %v", o.Time, maxTime)
	case o.Time != 0 && o.Rounds != 1:
		return errors.New("--time and --rounds: one says when it ends")
	}
	if o.Pages != 0 {
		o.Size = uint64(o.Pages) * devmem.PageSize
	}
	if o.Size%devmem.PageSize != 0 || o.Size > 1<<30 {
		return fmt.Errorf("--size %s: whole pages of %d bytes, up to 1G, with --mr %s", lab.FormatBytes(o.Size),
			devmem.PageSize, OnDemand)
	}
	f, err := o.faults()
	if err != nil {
		return err
	}
	if o.Lab == nil {
		o.Driver, o.Hotplug = lab.DriverVNICGPU, f.remove > 0
		return nil
	}
	for _, g := range o.Lab.Complete().Guests[:min(2, len(o.Lab.Complete().Guests))] {
		if g.Driver != lab.DriverVNICGPU {
			return fmt.Errorf("--mr %s: guest %s of the lab file: driver: %s, whose GPU's pages a program can have", OnDemand,
				g.Name, lab.DriverVNICGPU)
		}
	}
	return nil
}

// Pages has the counters of a run with pages on demand.
type Pages struct {
	Pages    uint64 `json:"pages"`
	Requests uint64 `json:"page_requests"` // requests of the NIC, for one page or several
	Stale    uint64 `json:"stale_answers"` // answers that an invalidation had overtaken
	MapsP2P  uint64 `json:"p2p_maps"`      // pages in the GPU that the NIC entered in its table
	MapsHost uint64 `json:"host_maps"`     // pages in RAM that it entered
	Refused  uint64 `json:"refused"`       // requested pages that it did not get
	BytesP2P uint64 `json:"p2p_bytes"`     // payload in the GPU, in both directions, with retransmissions
	BytesRAM uint64 `json:"host_bytes"`

	ToGPU   uint64 `json:"to_gpu"`       // pages moved to the GPU
	ToRAM   uint64 `json:"to_ram"`       // pages moved back at the program's request
	Touched uint64 `json:"touched"`      // pages moved back because the program or the NIC touched them
	Linux   uint64 `json:"moved_in_ram"` // pages of any program that Linux moved within RAM

	Invalidations uint64   `json:"invalidations"` // reported to the NIC
	P50           float64  `json:"invalidation_p50_us"`
	P99           float64  `json:"invalidation_p99_us"` // rounded upper bound, in steps of a factor of sqrt(2)
	IdleP99       float64  `json:"idle_wakeup_p99_us"`  // delay with which a sleeping program wakes up
	Untold        uint64   `json:"untold"`              // invalidations of pages that the NIC did not have
	Parked        uint64   `json:"parked_packets"`
	Retried       uint64   `json:"retried_packets"` // packets that could not be parked
	AfterAck      uint64   `json:"dma_after_ack"`   // unused pages of the GPU that were written to
	Looked        uint64   `json:"pages_left"`      // unused pages of the GPU that were checked
	Quarantined   bool     `json:"quarantined"`
	SHA256        string   `json:"program_sha256"` // digest as the program reads the memory
	Waits         []uint32 `json:"waits"`
}

// quantile returns an upper bound, in microseconds and rounded, of a quantile of the waits
// (gpudriver.RegionStats.Waits): part 0.99 is the 99th percentile. Without waits it returns 0; the last class also
// counts longer waits.
func quantile(waits []uint32, part float64) float64 {
	var all, n float64
	for _, w := range waits {
		all += float64(w)
	}
	for i, w := range waits {
		if n += float64(w); w > 0 && n >= part*all {
			return math.Round(math.Pow(2, float64(i+1)/2))
		}
	}
	return 0
}

// onDemand runs the rounds with pages on demand: each writes to the responder's memory and reads the bytes back into
// another part of the requester's GPU. With the fault remove, kill or bad, disturbed runs them.
func (u *use) onDemand(ctx context.Context, r *Run, port uint16) error {
	o := u.opt
	if err := o.Begin(ctx, session.Step{Stage: "connect", Mode: r.Memory}); err != nil {
		return err
	}
	if _, err := u.connect(ctx, r, port); err != nil {
		return err
	}
	faults, err := o.faults()
	nic := u.responder.Port.NIC()
	if err := errors.Join(err, nic.DelayPageAcks(faults.late), nic.LosePageAnswers(faults.lose),
		nic.KeepStalePages(faults.stale)); err != nil {
		return err
	}
	r.Requester, r.Responder = newEnd(u.requester), newEnd(u.responder)
	before, err := transfer.ODP(ctx, u.responder.Ops)
	if err != nil {
		return fmt.Errorf("guest %s: %w", u.responder.Name, err)
	}
	if o.Migrate > 0 || o.Compact {
		storm := transfer.Storm{Rate: o.Migrate, Seed: o.Seed, Compact: o.Compact}
		if err := transfer.StartStorm(ctx, u.responder.Ops, storm); err != nil {
			return fmt.Errorf("guest %s: %w", u.responder.Name, err)
		}
	}
	r.Verified = o.Verify
	u.begin = time.Now()
	if faults.ends() {
		return u.disturbed(ctx, r, faults)
	}
	for r.Rounds = 0; r.Rounds < o.Rounds || time.Since(u.begin) < o.Time; r.Rounds++ {
		if err := u.roundOnDemand(ctx, r); err != nil {
			return fmt.Errorf("round %d: %w", r.Rounds+1, u.why(ctx, err))
		}
	}
	for _, e := range []*End{&r.Requester, &r.Responder} { // measure has divided by Options.Rounds
		*e.CPUPerGB *= float64(o.Rounds) / float64(r.Rounds)
	}
	if err := transfer.EndStorm(ctx, u.responder.Ops); err != nil {
		return fmt.Errorf("guest %s: %w", u.responder.Name, err)
	}
	if err := u.pages(ctx, r, &before); err != nil {
		return fmt.Errorf("guest %s: %w", u.responder.Name, err)
	}
	return u.end(ctx)
}

// why explains an error of a move by a region in quarantine, or by pages that the responder's NIC did not get; it
// returns err alone if there is no such cause, or ctx has ended.
func (u *use) why(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return err
	}
	s, e := transfer.ODP(ctx, u.responder.Ops)
	if e != nil {
		return err
	}
	c, e := u.responder.Port.NIC().PageCounts(s.Key)
	switch {
	case e != nil:
	case s.Timeouts > 0 || c.Quarantined != 0:
		return fmt.Errorf("guest %s's NIC did not acknowledge in time that it has let go of pages: its memory region is in "+
			"quarantine: %w", u.responder.Name, err)
	case c.Refused > 0 && s.Errno != 0:
		return fmt.Errorf("guest %s's NIC did not get %d pages that it asked for, as its driver says: %w: %w",
			u.responder.Name, c.Refused, syscall.Errno(s.Errno), err)
	case c.Refused > 0:
		return fmt.Errorf("guest %s's NIC did not get %d pages that it asked for within 4 seconds: %w", u.responder.Name,
			c.Refused, err)
	}
	return err
}

// pages sets r.Pages, and checks the digest of the program's memory and that the guest's kernel has not complained.
func (u *use) pages(ctx context.Context, r *Run, before *transfer.ODPStats) error {
	now, err := transfer.ODP(ctx, u.responder.Ops)
	if err != nil {
		return err
	}
	c, err := u.responder.Port.NIC().PageCounts(now.Key)
	if err != nil {
		return err
	}
	p := &Pages{Pages: u.opt.Size / devmem.PageSize, Requests: c.Requests, Stale: c.Stale, MapsP2P: c.MapsGPU,
		MapsHost: c.MapsHost, Refused: c.Refused, BytesP2P: c.GPUBytes, BytesRAM: c.HostBytes,
		ToGPU: now.ToGPU - before.ToGPU, ToRAM: now.ToRAM - before.ToRAM, Touched: now.Touched - before.Touched,
		Linux:         now.Compacted - before.Compacted,
		Invalidations: now.Invalidations - before.Invalidations, Untold: now.Untold - before.Untold,
		P50: quantile(now.Waits, 0.5), P99: quantile(now.Waits, 0.99), IdleP99: math.Round(float64(now.Idle) / 1e3),
		Parked: c.Parked, Retried: c.NotReady,
		AfterAck: now.Broken - before.Broken, Looked: now.Left - before.Left,
		Quarantined: now.Quarantined || c.Quarantined != 0, Waits: now.Waits}
	r.Pages = p
	d, err := transfer.DigestODP(ctx, u.responder.Ops) // after the counters, because the digest moves the pages
	if err != nil {
		return err
	}
	p.SHA256 = d.SHA256
	if err := u.quiet(ctx, u.responder); err != nil {
		return err
	}
	written, err := session.Pattern(u.opt.Seed+uint64(r.Rounds-1)).SHA256(ctx, u.opt.Size)
	if err != nil {
		return err
	}
	if want := hex.EncodeToString(written[:]); p.SHA256 != want && r.Error == "" {
		r.Verified = false
		r.Error = fmt.Sprintf("the memory of guest %s's program is not what was put there: its SHA-256 is %s, and not %s",
			u.responder.Name, p.SHA256, want)
	}
	return nil
}

// roundOnDemand writes the source to the responder's memory and reads it back. It measures only the direction
// of Options.Op.
func (u *use) roundOnDemand(ctx context.Context, r *Run) error {
	put := transfer.RDMAMove{Back: u.opt.Op == Get}
	get := transfer.RDMAMove{Back: u.opt.Op == Put, At: u.opt.Size}
	return u.round(ctx, r, r.Rounds, exchange{src: u.requester, dst: u.requester, off: u.opt.Size,
		move: func() error {
			if err := u.moveOnDemand(ctx, r, u.opt.Op == Put, put); err != nil {
				return err
			}
			return u.moveOnDemand(ctx, r, u.opt.Op == Get, get)
		},
		wrong: func(first uint64) (string, error) {
			if first == u.opt.Size {
				return "", nil
			}
			return fmt.Sprintf("byte %d of what was put into guest %s's memory, and read back, is not what it was", first,
				u.responder.Name), nil
		}})
}

func (u *use) moveOnDemand(ctx context.Context, r *Run, measured bool, m transfer.RDMAMove) error {
	m.Len, m.Block = u.opt.Size, uint32(u.opt.Block)
	f := func() error {
		res, err := transfer.MoveRDMA(ctx, u.requester.Ops, m)
		if err == nil && measured {
			r.add(&res)
		}
		return err
	}
	if !measured {
		return f()
	}
	return u.measure(ctx, r, uint64(r.Rounds)*u.opt.Size, f)
}
