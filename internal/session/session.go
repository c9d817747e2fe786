// Package session makes the lab of a command and its guests: it boots them in QEMU, or this process takes the place of
// the guests. A guest takes a NIC when it sets up a driver and a network stack on the NIC ([Node.Take]). A [Set] is a
// [Session] that is made from [Options], and whose guests have taken NICs.
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
	"vnic.dev/vnic/internal/undo"
)

// Common are options that several commands share.
type Common struct {
	InProc   bool // this process takes the place of the guests; else they run in QEMU
	Accel    qemu.Accel
	Fetch    assets.Options
	Log      *slog.Logger
	Services []lab.Service // of the lab, after World.Services

	Stage func(Step)                       // called when a stage begins; may be nil
	Note  func(format string, args ...any) // called with messages for the user; may be nil
	Pause string                           // tests: at the beginning of this stage, wait until the context ends
	Alive *limit.Guests                    // records what each guest does, for the error of Timeout; may be nil

	Timeout time.Duration // after it `vnic run` and `vnic boot` end with a *limit.Error; 0: no limit

	// Confine puts this process into its sandbox. A Session calls it: with guests in QEMU when all QEMUs have started,
	// with InProc at the end of a Setup without error. From then on Broker does for this process some of what the
	// sandbox forbids. Either both are nil, or neither.
	Confine func() error
	Broker  *broker.Client
}

// Check returns an error for --modules without --kernel, and for a negative Timeout.
func (o *Common) Check() error {
	if o.Fetch.Modules != "" && o.Fetch.Kernel == "" {
		return errors.New("--modules without --kernel: give the kernel that they belong to")
	}
	return limit.Check(o.Timeout)
}

type Step struct {
	Stage         string
	Mode          string // of a transfer, or its kind of memory with RDMA; "" in the stages before transfers
	Round, Rounds int    // the round's number, from 1, and the number of rounds; both 0: the stage is of no round
}

// Begin records a stage in Alive, and calls Stage. In the stage Pause it then waits until ctx ends. If ctx has ended,
// Begin returns the cause.
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

// Tell passes a message for the user to Note, if Note is set.
func (o *Common) Tell(format string, args ...any) {
	if o.Note != nil {
		o.Note(format, args...)
	}
}

// World describes the lab and the guests of a Session.
type World struct {
	Lab    lab.Description
	Guests []BootConfig // of the lab's first machines; the other machines are no guests of the Session
	// Models are the models of the NICs of guests in QEMU; Modules are further kernel modules of the images. With
	// Interfaces, the images also have Linux's drivers of these models: Locate finds a NIC by its interface's MAC.
	Models     []string
	Modules    []string
	Interfaces bool
	// Images, if set, replaces the fetch, and Models, Modules and Interfaces are not used. The caller of Open closes
	// what Images returns.
	Images   func(context.Context) (*machine.Images, error)
	Services []lab.Service // before Common.Services
	Flows    *int          // lab.Options.Flows; nil: lab.DefaultFlows
	Storm    uint          // lab.Options.Storm
	Enough   func() error  // returns an error if the host's memory does not suffice; nil: no check
	// Started is called when a guest in QEMU has booted; ctx ends when a guest fails and when Boot returns. Its error
	// makes Boot fail. It may be nil.
	Started func(context.Context, *Guest) error
	During  string // when a guest ended, for a message; "": "in the middle of the run"
	// Keep makes a file of this name that outlives the run, for the console of a guest in QEMU, or returns nil if the
	// user keeps none. It may be nil.
	Keep func(name string) (*os.File, error)
}

// BootConfig describes how a guest in QEMU boots; with InProc only Title counts.
type BootConfig struct {
	Title     string // in messages; "": "guest " and its name in the lab
	Memory    uint64 // RAM, in bytes
	CPUs      int    // 0: 1
	TimeLimit time.Duration
	Disks     []qemu.Disk
	Load      func(*machine.Images) []string // modules that the guest loads; nil: all of the Images
	// Complete changes the Config before the boot; done is called when the guest has booted or failed to. After an
	// error of Complete the guest does not boot. Complete may be nil.
	Complete func(*machine.Config) (done func(), err error)
}

// Session is a lab and its guests.
type Session struct {
	Lab    *lab.Lab
	Guests []*Guest
	Info   Info

	opt   *Common
	world World
	im    *machine.Images // from which guests boot; nil: InProc
	gate  *broker.Gate
	stop  context.CancelFunc // ends all QEMUs; until Boot it does nothing
	undo  undo.Stack         // closes the lab, fetched images and console files, after guests have ended

	mu   sync.Mutex
	ends []func() error // under mu: of OnClose, until Close calls them
}

// Guest is one guest of a Session.
type Guest struct {
	Name string
	HW   *lab.Machine
	QEMU *machine.Guest // nil: the guest is in this process, or has not booted

	boot    BootConfig
	console *os.File // gets a copy of the console's output; nil: none
}

// Info describes the QEMU, the kernel and the boot of a Session's guests. Guests in this process have none of these.
type Info struct {
	Guest       string   `json:"guest"` // "qemu" or "inproc"
	QEMU        string   `json:"qemu"`
	Kernel      string   `json:"kernel"`
	Accel       string   `json:"accel"`
	BootSeconds float64  `json:"boot_seconds,omitempty"`
	Untested    []string `json:"untested,omitempty"`
}

// String returns one line about the QEMU, the kernel and the boot, or "inproc".
func (i *Info) String() string {
	if i.Guest != "qemu" {
		return i.Guest
	}
	return fmt.Sprintf("%s %s (%s), kernel %s, booted in %.1f s", i.Guest, i.QEMU, i.Accel, i.Kernel, i.BootSeconds)
}

// Open fetches the images from which guests in QEMU boot, or calls World.Images, and makes the lab: the stages fetch
// and gpu-memory. After an error it has closed what it opened itself.
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
		s.undo.Add(s.im.Close)
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
	s.undo.Add(s.Lab.Close)
	for i, b := range w.Guests {
		hw := s.Lab.Machine(i)
		s.Guests = append(s.Guests, &Guest{Name: hw.Name, HW: hw, boot: b})
	}
	if o.Confine != nil && !o.InProc {
		s.gate = broker.NewGate(o.Broker, len(s.Guests), o.Confine)
	}
	return s, nil
}

func (g *Guest) title() string { return cmp.Or(g.boot.Title, "guest "+g.Name) }

// Boot boots all guests in QEMU at the same time, and sets Info: stage boot. If one fails, or Started does, Boot ends
// the others.
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
	mctx, cancel := context.WithCancel(ctx) // QEMUs run until ctx ends, a guest fails to boot, or Close
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

// console makes the file for a guest's console, which Close closes, or returns nil if the user keeps none.
func (s *Session) console(g *Guest) (*os.File, error) {
	if s.world.Keep == nil {
		return nil, nil
	}
	f, err := s.world.Keep("console-" + g.Name + ".log")
	if f != nil {
		s.undo.Add(f.Close)
	}
	return f, err
}

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

// Setup calls f for all guests, as Each does, to make them take their NICs: stage setup. With InProc it then calls
// Confine.
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

// Each calls f for all elements of list at the same time, each within a limit; 0: none. The first error cancels
// the other calls. Each returns all errors with the titles of their elements, but not context.Canceled of cancelled
// calls. If none is left, it returns the cause of the end of ctx, or nil if ctx has not ended.
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

// Within calls f with a context that ends with ctx, and after the limit; 0: no limit.
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

// OnClose adds a function that Close calls while it ends the guests. Any goroutine may call OnClose before Close.
func (s *Session) OnClose(f func() error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ends = append(s.ends, f)
}

// Gone reports whether a QEMU of the Session, or the agent in its guest, has ended.
func (s *Session) Gone() bool {
	return slices.ContainsFunc(s.Guests, func(g *Guest) bool { return g.QEMU != nil && g.QEMU.Ended() })
}

// Blame returns a likely cause of err: the cause of the end of ctx, or else the error of a guest in QEMU that has
// ended, with err. If ctx and all guests go on, it returns err.
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

// advice returns what the user can do about a guest that ended with err, or "".
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

// Close ends the guests and calls the functions of OnClose, all at the same time, and then closes the lab.
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
	return errors.Join(append(errs, s.undo.All())...)
}

// OrCause returns the cause of the end of ctx, or err if ctx has not ended.
func OrCause(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}
