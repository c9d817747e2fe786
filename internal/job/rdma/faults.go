package rdma

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/gpumem"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/session"
	"vnic.dev/vnic/internal/transfer"
)

// Faults of pages on demand, for --fault. The NIC is guest 1's.
const (
	NeverAck    = "never-ack"    // the NIC never acknowledges invalidations
	LateAck     = "late-ack"     // =TIME: the NIC acknowledges invalidations TIME later
	LoseAnswers = "lose-answers" // =N: the first N answers to page requests are lost
	Stale       = "stale"        // the NIC acknowledges invalidations, but goes on using pages in the GPU

	RemoveGPU = "remove-gpu" // =TIME: guest 1's GPU is removed after TIME
	Kill      = "kill"       // =TIME: the program that has the memory is killed after TIME
	BadPage   = "bad-page"   // =N: Linux takes page N for broken memory
)

// faults has the faults of a run. After remove, kill and bad the transfer cannot go on.
type faults struct {
	late         time.Duration // delay of acknowledgments; negative: for ever
	lose         int           // answers to page requests that are lost
	stale        bool
	remove, kill time.Duration // time after the first round's begin; 0: no such fault
	bad          int           // number of the broken page; -1: none
}

// faults parses Options.Fault: faults with commas between, of remove, kill and bad at most one.
func (o *Options) faults() (f faults, err error) {
	f.bad = -1
	if o.Fault == "" {
		return f, nil
	}
	for text := range strings.SplitSeq(o.Fault, ",") {
		if err := f.add(text, int(o.Size/devmem.PageSize)); err != nil {
			return f, err
		}
	}
	if f.remove > 0 && f.kill > 0 || f.bad >= 0 && (f.remove > 0 || f.kill > 0) {
		return f, fmt.Errorf("--fault %s: one of %s, %s and %s", o.Fault, RemoveGPU, Kill, BadPage)
	}
	return f, nil
}

func (f *faults) add(text string, pages int) error {
	name, value, has := strings.Cut(text, "=")
	d, errD := time.ParseDuration(value)
	n, errN := strconv.Atoi(value)
	timed, counted := errD == nil && d > 0 && d <= time.Minute, errN == nil && n > 0
	switch {
	case name == NeverAck && !has:
		f.late = -1
	case name == Stale && !has:
		f.stale = true
	case name == LateAck && timed:
		f.late = d
	case name == LoseAnswers && counted:
		f.lose = n
	case name == RemoveGPU && timed:
		f.remove = d
	case name == Kill && timed:
		f.kill = d
	case name == BadPage && errN == nil && n >= 0 && n < pages:
		f.bad = n
	default:
		return fmt.Errorf("--fault %s: %s, %s=TIME (up to 1m), %s=N, %s, %s=TIME, %s=TIME or %s=PAGE", text, NeverAck,
			LateAck, LoseAnswers, Stale, RemoveGPU, Kill, BadPage)
	}
	return nil
}

func (f *faults) ends() bool { return f.remove > 0 || f.kill > 0 || f.bad >= 0 }

// disturbed causes one of the faults remove, kill and bad, runs rounds until one fails, and checks that the fault has
// disturbed nothing else. It always returns an error, which says what the fault did, or what went wrong.
func (u *use) disturbed(ctx context.Context, r *Run, f faults) error {
	g := u.responder
	name := "guest " + g.Name
	ctx, cancel := context.WithTimeoutCause(ctx, max(f.remove, f.kill)+limits.Disturbed.Here(),
		fmt.Errorf("%s: nothing has failed, or not all of it, %v after it should have", name, limits.Disturbed.Here()))
	defer cancel()
	var killed transfer.Killed
	var did error
	done := make(chan struct{})
	switch {
	case f.bad >= 0:
		did = transfer.BreakPage(ctx, g.Ops, transfer.Page{Page: f.bad})
		close(done)
	default:
		go func() {
			defer close(done)
			t := time.NewTimer(max(f.remove, f.kill))
			defer t.Stop()
			select {
			case <-t.C:
			case <-ctx.Done():
				return
			}
			if f.kill > 0 {
				killed, did = transfer.KillOwner(ctx, g.Ops)
			} else {
				did = u.remove()
			}
			if did != nil {
				cancel() // the fault could not be caused: no round would fail
			}
		}()
	}
	err := context.Cause(ctx)
	for r.Rounds = 0; err == nil; r.Rounds++ {
		if err = u.roundOnDemand(ctx, r); err == nil && r.Error != "" {
			err = fmt.Errorf("%w: %s", ErrProof, r.Error)
		}
	}
	happened := false
	if !errors.Is(err, ErrProof) {
		// The round may have failed for another reason, before the fault.
		select {
		case <-done:
			happened = did == nil
		case <-time.After(limits.Failed.Here()):
		}
	}
	if !happened {
		cancel()
		<-done
		return errors.Join(did, fmt.Errorf("round %d: %w", r.Rounds, u.why(context.WithoutCancel(ctx), err)))
	}
	err = fmt.Errorf("round %d: %w", r.Rounds, err)
	if cause := context.Cause(ctx); cause != nil {
		return fmt.Errorf("%w: %w", cause, err)
	}
	reported, bad := u.after(ctx, r, f, killed)
	if bad == nil {
		bad = u.quiet(ctx, g)
	}
	if bad != nil {
		return fmt.Errorf("after --fault %s: %w\nwhat it was: %w", u.opt.Fault, bad, err)
	}
	return fmt.Errorf("%s: %w", reported, err)
}

// after describes what a fault did. bad is an error if the fault disturbed something else, or a check of that failed.
func (u *use) after(ctx context.Context, r *Run, f faults, killed transfer.Killed) (reported string, bad error) {
	name := "guest " + u.responder.Name
	switch {
	case f.kill > 0:
		reported = fmt.Sprintf("%s's program, whose memory it was, was killed while guest %s's NIC used it: its exit took %s, "+
			"%s; another queue pair has gone on", name, u.requester.Name, killed.Exit.Round(time.Millisecond),
			waited(killed))
		bad = u.goesOn(ctx, r, u.opt.Size, u.opt.Size)
	case f.remove > 0:
		var now, before uint64
		now, before, bad = u.afterRemoval(ctx, r)
		reported = fmt.Sprintf("%s's GPU was removed while guest %s's NIC used it: its program has all pages, in RAM, with %s "+
			"of round %d and %s of the one before", name, u.requester.Name, lab.FormatBytes(now), r.Rounds,
			lab.FormatBytes(before))
	default:
		reported = fmt.Sprintf("%s's NIC did not get page %d, whose memory Linux takes for broken; another queue pair has "+
			"moved all others", name, f.bad)
		pos := uint64(f.bad) * devmem.PageSize
		bad = u.goesOn(ctx, r, 0, pos)
		if rest := pos + devmem.PageSize; bad == nil && rest < u.opt.Size {
			bad = u.goesOn(ctx, r, rest, u.opt.Size-rest)
		}
	}
	return reported, bad
}

// waited says how a process's end went: whether the NIC let go of all pages, or Linux waited for it in vain.
func waited(k transfer.Killed) string {
	switch {
	case k.Quarantined:
		return fmt.Sprintf("with %d wait for the NIC in vain, and its region is in quarantine", k.Timeouts)
	case k.Timeouts > 0:
		return "and Linux has waited for the NIC in vain"
	}
	return "and the NIC has let go of all pages"
}

func (u *use) remove() error {
	c, err := lab.ParseChange("gpu " + u.responder.HW.GPUs[0].Name + " remove")
	if err == nil {
		err = u.set.Lab.Apply(c)
	}
	return err
}

// goesOn writes n bytes at off of the responder's memory by the spare queue pair, reads them back, and checks them.
func (u *use) goesOn(ctx context.Context, r *Run, off, n uint64) error {
	if n == 0 {
		return nil
	}
	g, o := u.requester, u.opt
	gen := session.Pattern(o.Seed + uint64(r.Rounds))
	m := transfer.RDMAMove{Off: off, Len: n, Block: uint32(o.Block), Spare: true}
	if err := g.Fill(ctx, off, n, gen); err != nil {
		return err
	}
	for _, there := range []bool{true, false} {
		m.Back = there == (o.Op == Get)
		if _, err := transfer.MoveRDMA(ctx, g.Ops, m); err != nil {
			return fmt.Errorf("the other queue pair: %w", err)
		}
		if !there {
			break
		}
		if err := g.Poison(ctx, off, n, session.Poison); err != nil {
			return err
		}
	}
	first, err := g.Differs(ctx, off, n, gen)
	if err == nil && first < n {
		err = fmt.Errorf("the other queue pair: byte %d of what was put, and read back, is not what it was", off+first)
	}
	return err
}

// afterRemoval checks the program's memory after the removal of its GPU: each packet's part has the bytes of the failed
// round or of the round before. It returns how many bytes are of the failed round, and how many of the round before; an
// error if the first round failed.
func (u *use) afterRemoval(ctx context.Context, r *Run) (now, before uint64, err error) {
	u.set.Lab.AwaitRemovals(ctx)
	if !u.responder.HW.GPUs[0].Removed() {
		return 0, 0, errors.New("the GPU is still there")
	}
	if r.Rounds < 2 {
		return 0, 0, fmt.Errorf("the first round has failed already, and what the memory was before is not known: a later %s",
			RemoveGPU)
	}
	seed := u.opt.Seed + uint64(r.Rounds) - 1
	a, b := make([]byte, r.PathMTU), make([]byte, r.PathMTU)
	for pos := uint64(0); pos < u.opt.Size; {
		part, err := transfer.ReadODP(ctx, u.responder.Ops,
			transfer.Bytes{Off: pos, Len: min(transfer.MaxRead, u.opt.Size-pos)})
		if err != nil {
			return now, before, err
		}
		for d := part.Data; len(d) > 0; {
			n := min(len(d), len(a))
			gpumem.FillAt(a[:n], seed, pos)
			gpumem.FillAt(b[:n], seed-1, pos)
			switch string(d[:n]) {
			case string(a[:n]):
				now += uint64(n)
			case string(b[:n]):
				before += uint64(n)
			default:
				return now, before, fmt.Errorf("the program's memory at %#x is neither this round's nor the one's before", pos)
			}
			d, pos = d[n:], pos+uint64(n)
		}
	}
	return now, before, nil
}

// quiet returns an error if a guest's kernel has complained.
func (u *use) quiet(ctx context.Context, g *session.Node) error {
	lines, err := transfer.Complaints(ctx, g.Ops)
	if err == nil && len(lines) > 0 {
		err = fmt.Errorf("guest %s's kernel says: %s", g.Name, strings.Join(lines, "\n"))
	}
	return err
}
