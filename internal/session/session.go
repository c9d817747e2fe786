// Package session boots the guests of a command, in QEMU or in this process, and has each take its NICs: a
// transfer.Node for every NIC that is used, which does what the command asks for.
//
// What is common to all commands with guests is here: what they boot from, how they are started behind the sandbox,
// which of a guest's NICs is which, how much of a GPU's memory a guest can use and where it is, and who is to blame
// when one ends. `vnic run` has ends of its own, made of these parts; a [Set] is for commands that ask every guest
// the same.
package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"vnic.dev/vnic/internal/agent"
	"vnic.dev/vnic/internal/broker"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/limit"
	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/machine"
	"vnic.dev/vnic/internal/machine/assets"
	"vnic.dev/vnic/internal/machine/qemu"
)

// Common are the options of every command that starts guests.
type Common struct {
	InProc   bool       // guests in this process; else in QEMU
	Accel    qemu.Accel // how QEMU runs guests
	Fetch    assets.Options
	Log      *slog.Logger
	Services []lab.Service // what else sees the lab: counters, a capture

	Stage func(Step)                       // a stage begins
	Note  func(format string, args ...any) // what a user should know
	Pause string                           // the stage at which to stop for ever (tests)
	Alive *limit.Guests                    // what the guests do, for Timeout; may be nil

	Timeout time.Duration // after which the command ends, with a *limit.Error; 0: never

	// Confine takes rights from this process when all guests are there, and none has been let in; Broker then does for it
	// what it may not any more. Both or neither may be nil.
	Confine func() error
	Broker  *broker.Client
}

// Check says what is wrong with the options.
func (o *Common) Check() error {
	if o.Fetch.Modules != "" && o.Fetch.Kernel == "" {
		return errors.New("--modules without --kernel: give the kernel that they belong to")
	}
	return limit.Check(o.Timeout)
}

// Step is a stage as it begins.
type Step struct {
	Stage         string
	Mode          string // "" before the first transfer
	Round, Rounds int    // from 1
}

// Begin begins a stage. It returns an error when the command has been interrupted.
func (o *Common) Begin(ctx context.Context, s Step) error {
	o.Alive.Stage(s.Stage)
	if o.Stage != nil {
		o.Stage(s)
	}
	if o.Pause == s.Stage {
		<-ctx.Done()
	}
	return context.Cause(ctx)
}

// Tell notes what a user should know.
func (o *Common) Tell(format string, args ...any) {
	if o.Note != nil {
		o.Note(format, args...)
	}
}

// World is what a Session opens.
type World struct {
	Lab    lab.Description
	Guests []BootConfig // of the lab's first machines; all others are ports of this process
	// Models are the device models of the NICs of guests in QEMU; Modules are what their kernels load besides the NICs'
	// drivers. With Interfaces, the kernels load these drivers first, and report which interface is which NIC.
	Models     []string
	Modules    []string
	Interfaces bool
	Images     func(context.Context) (*machine.Images, error) // in place of these, and the caller's to close; or nil
	Services   []lab.Service                                  // they see the lab before Common.Services
	Flows      *int                                           // lab.Options'; nil: lab.DefaultFlows
	Storm      uint                                           // lab.Options'
	Enough     func() error                                   // is there memory for all; nil: nobody looks
	// Started is called when a guest has booted, with a context that ends when another one fails. It may be nil.
	Started func(context.Context, *Guest) error
	During  string // when a guest ended that is gone, for messages; "": in the middle of the run
	// Keep makes a file of this name that outlives the run; a nil file: nobody wants it. nil: the command keeps nothing.
	Keep func(name string) (*os.File, error)
}

// BootConfig says how a guest in QEMU boots.
type BootConfig struct {
	Title     string // in messages; "": guest and its name
	Memory    uint64 // RAM, in bytes
	CPUs      int    // 0: 1
	TimeLimit time.Duration
	Disks     []qemu.Disk
	Load      func(*machine.Images) []string // modules of the Images' that the kernel loads; nil: all
	// Complete sets what else there is to say, and gives what is called when QEMU has started or failed. It may be nil.
	Complete func(*machine.Config) (done func(), err error)
}

// Session is a lab and its guests, from the fetch of what they boot from to their end.
type Session struct {
	Lab    *lab.Lab
	Guests []*Guest
	Info   Info

	opt    *Common
	world  World
	im     *machine.Images // nil: guests are in this process
	gate   *broker.Gate
	stop   context.CancelFunc // ends guests that are still about to boot
	closes []func() error     // called after the guests' end, the last first

	mu   sync.Mutex
	ends []func() error // under mu: called with the guests' end, all at the same time
}

// Guest is one of a Session's.
type Guest struct {
	Name string
	HW   *lab.Machine
	QEMU *machine.Guest // nil: in this process, or not booted

	boot    BootConfig
	console *os.File // nil: it is not kept
}

// Info is what is known of a Session's guests.
type Info struct {
	Guest       string   `json:"guest"` // "qemu" or "inproc"
	QEMU        string   `json:"qemu"`
	Kernel      string   `json:"kernel"`
	Accel       string   `json:"accel"`
	BootSeconds float64  `json:"boot_seconds,omitempty"`
	Untested    []string `json:"untested,omitempty"`
}

// String is a line about them.
func (i *Info) String() string {
	if i.Guest != "qemu" {
		return i.Guest
	}
	return fmt.Sprintf("%s %s (%s), kernel %s, booted in %.1f s", i.Guest, i.QEMU, i.Accel, i.Kernel, i.BootSeconds)
}

// Open fetches what guests boot from and makes the lab: the stages fetch and gpu-memory. Without an error the caller
// closes the Session; after one nothing of it is left.
func Open(ctx context.Context, o *Common, w World) (s *Session, err error) {
	s = &Session{opt: o, world: w, stop: func() {}}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
			s = nil
		}
	}()
	if err := o.Begin(ctx, Step{Stage: "fetch"}); err != nil {
		return s, err
	}
	switch {
	case w.Images != nil:
		if s.im, err = w.Images(ctx); err != nil {
			return s, err
		}
	case !o.InProc:
		models := slices.Clone(w.Models)
		slices.Sort(models)
		if s.im, err = Images(ctx, o.Fetch, slices.Compact(models), w.Interfaces, o.Tell, w.Modules...); err != nil {
			return s, err
		}
		s.closes = append(s.closes, s.im.Close)
	}
	if err := o.Begin(ctx, Step{Stage: "gpu-memory"}); err != nil {
		return s, err
	}
	if w.Enough != nil {
		if err := w.Enough(); err != nil {
			return s, err
		}
	}
	conf := lab.Options{Log: o.Log, Services: append(w.Services, o.Services...),
		Flows: lab.DefaultFlows, Storm: int(w.Storm), Sharing: o.Broker.Sharing}
	if w.Flows != nil {
		conf.Flows = *w.Flows
	}
	if !o.InProc {
		conf.Farewell = time.Duration(limits.GuestEnd)
	}
	if o.Note != nil {
		conf.Note = func(name, text string) { o.Note("%s: %s", name, text) }
	}
	if s.Lab, err = lab.Open(w.Lab, conf); err != nil {
		return s, err
	}
	s.closes = append(s.closes, s.Lab.Close)
	for i, b := range w.Guests {
		hw := s.Lab.Machine(i)
		s.Guests = append(s.Guests, &Guest{Name: hw.Name, HW: hw, boot: b})
	}
	if o.Confine != nil && !o.InProc {
		s.gate = broker.NewGate(o.Broker, len(s.Guests), o.Confine)
	}
	return s, nil
}

// title names the guest for users.
func (g *Guest) title() string { return cmp.Or(g.boot.Title, "guest "+g.Name) }

// Boot boots all guests at the same time; one that fails ends the others: stage boot.
func (s *Session) Boot(ctx context.Context) (err error) {
	if err := s.opt.Begin(ctx, Step{Stage: "boot"}); err != nil {
		return err
	}
	s.Info = Info{Guest: "inproc", QEMU: "none", Kernel: "none", Accel: "none"}
	if s.im == nil {
		for _, g := range s.Guests {
			s.opt.Alive.Set(g.title(), limit.Runs)
		}
		return nil
	}
	s.Info = Info{Guest: "qemu", QEMU: s.im.QEMU.Version, Kernel: s.im.Kernel.Version, Untested: s.im.Untested}
	begin := time.Now()
	mctx, cancel := context.WithCancel(ctx) // the machines live as long as the Session
	s.stop = cancel
	eg, ready := errgroup.WithContext(ctx)
	for _, g := range s.Guests {
		if g.console, err = s.console(g); err != nil {
			return err
		}
		s.opt.Alive.Set(g.title(), limit.Boots)
	}
	for _, g := range s.Guests {
		eg.Go(func() error {
			err := s.boot(mctx, g)
			if err == nil && s.world.Started != nil {
				err = s.world.Started(ready, g)
			}
			if err != nil {
				cancel()
			}
			return err
		})
	}
	if err := eg.Wait(); err != nil {
		return err
	}
	for _, g := range s.Guests {
		s.opt.Alive.Set(g.title(), limit.Runs)
	}
	s.Info.Accel = string(s.Guests[0].QEMU.Accel())
	s.Info.BootSeconds = time.Since(begin).Seconds()
	return nil
}

// console is the file that keeps what a guest's console says; nil: nobody wants it.
func (s *Session) console(g *Guest) (*os.File, error) {
	if s.world.Keep == nil {
		return nil, nil
	}
	f, err := s.world.Keep("console-" + g.Name + ".log")
	if f != nil {
		s.closes = append(s.closes, f.Close)
	}
	return f, err
}

// boot boots a guest, which lives as long as ctx, at most until the Session is closed.
func (s *Session) boot(ctx context.Context, g *Guest) (err error) {
	c := machine.Config{Config: qemu.Config{Name: g.title(), RAMSize: g.boot.Memory, CPUs: g.boot.CPUs,
		Disks: g.boot.Disks, TimeLimit: g.boot.TimeLimit, Log: s.opt.Log, Accel: s.opt.Accel},
		Agent: agent.Config{Hostname: "vnic-" + strings.ToLower(g.Name)}}
	if g.boot.Load != nil {
		c.Agent.Modules = g.boot.Load(s.im)
	}
	if g.console != nil {
		c.Console = g.console
	}
	if s.gate != nil {
		c.Started = s.gate.Pass
	}
	if g.boot.Complete != nil {
		done, err := g.boot.Complete(&c)
		if err != nil {
			return err
		}
		defer done()
	}
	g.QEMU, err = s.im.Boot(ctx, g.HW, c)
	return err
}

// Setup makes each guest take its NICs, by f, within a limit: stage setup. Then this process gives up its rights, if it
// has not with the guests' start.
func (s *Session) Setup(ctx context.Context, limit time.Duration, f func(context.Context, *Guest) error) error {
	if err := s.opt.Begin(ctx, Step{Stage: "setup"}); err != nil {
		return err
	}
	err := Each(ctx, limit, s.Guests, (*Guest).title, f)
	switch {
	case err != nil && s.im != nil:
		return s.im.BlameKernel(fmt.Errorf("set up its NIC: %w", err), qemu.NewerKernel)
	case err == nil && s.im == nil && s.opt.Confine != nil:
		return s.opt.Confine()
	}
	return err
}

// Each calls f for all of list at the same time, within a limit; 0: without one. The first error cancels the others;
// all errors are returned, each with the title of the element that it came from.
func Each[T any](ctx context.Context, limit time.Duration, list []T, title func(T) string,
	f func(context.Context, T) error) error {
	outer := ctx
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	errs := make([]error, len(list))
	var work sync.WaitGroup
	for i, x := range list {
		work.Go(func() {
			err := Within(ctx, limit, func(ctx context.Context) error { return f(ctx, x) })
			if err == nil {
				return
			}
			if !errors.Is(err, context.Canceled) || ctx.Err() == nil {
				errs[i] = fmt.Errorf("%s: %w", title(x), err)
			}
			cancel()
		})
	}
	work.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return context.Cause(outer)
}

// Within calls f with a context that ends after the limit; 0: there is none.
func Within(ctx context.Context, limit time.Duration, f func(context.Context) error) error {
	if limit == 0 {
		return f(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := f(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("not done after %v: %w", limit, err)
	}
	return err
}

// OnClose adds what is called at the guests' end. It may be called from any goroutine until Close.
func (s *Session) OnClose(f func() error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ends = append(s.ends, f)
}

// Gone reports whether a guest has ended.
func (s *Session) Gone() bool {
	return slices.ContainsFunc(s.Guests, func(g *Guest) bool { return g.QEMU != nil && g.QEMU.Ended() })
}

// Blame finds what is behind an error: an interruption, or a guest that is gone, explains whatever came of it.
func (s *Session) Blame(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	for _, g := range s.Guests {
		if g.QEMU == nil {
			continue
		}
		if gone := g.QEMU.Gone(cmp.Or(s.world.During, "in the middle of the run")); gone != nil {
			return fmt.Errorf("%w\nwhat it ended: %w%s", gone, err, s.advice(gone))
		}
	}
	return err
}

// advice says what can be done about a guest that ended.
func (s *Session) advice(err error) string {
	var e *qemu.RunError
	switch {
	case errors.As(err, &e) && errors.Is(e, qemu.ErrExited) && strings.Contains(e.Detail, "signal: killed"):
		return "\nif nobody killed it, the machine ran out of memory: free some, or name less (--memory, --gpu-memory)"
	case s.world.Keep != nil:
		return "\n--keep keeps all that its console says"
	}
	return ""
}

// Close ends the guests, all at the same time, and then takes the lab down.
func (s *Session) Close() error {
	s.mu.Lock()
	ends := s.ends
	s.ends = nil
	s.mu.Unlock()
	for _, g := range s.Guests {
		if g.QEMU != nil {
			ends = append(ends, g.QEMU.Close)
		}
	}
	errs := make([]error, len(ends))
	var work sync.WaitGroup
	for i, end := range ends {
		work.Go(func() { errs[i] = end() })
	}
	work.Wait()
	s.stop()
	for _, f := range slices.Backward(s.closes) {
		errs = append(errs, f())
	}
	s.closes = nil
	return errors.Join(errs...)
}

// OrCause puts the end of ctx before what came of it.
func OrCause(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}
