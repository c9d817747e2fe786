package guests

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"vnic.dev/vnic/cmd/vnic/internal/broker"
	"vnic.dev/vnic/gpumem"
	"vnic.dev/vnic/guest-images/transfer"
	"vnic.dev/vnic/lab"
	"vnic.dev/vnic/lab/machines"
)

// Node is a transfer.Node of a guest, here or behind the results channel.
type Node interface {
	Join(ctx context.Context, r transfer.Rank) error
	Collective(ctx context.Context, c transfer.Collective) (transfer.CollectiveResult, error)
	Leave(ctx context.Context) error
}

// Guest is one of a Set's.
type Guest struct {
	Node
	Memory

	Name string
	HW   *lab.Machine
	Port *lab.Port
	QEMU *machines.Guest // nil: in this process
	conf NodeConfig
	near *transfer.Node // of one in this process
}

// Config says how the guest has its NIC.
func (g *Guest) Config() NodeConfig { return g.conf }

// Info is what is known of a Set's guests.
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

// Set is a lab whose guests have all booted and taken their NICs.
type Set struct {
	Lab    *lab.Lab
	Guests []*Guest
	Info   Info

	opt    *Options
	im     *machines.Images
	gate   *broker.Gate
	cancel context.CancelFunc // ends guests that are still about to boot
	close  []func() error
}

// Open makes the lab and boots its guests: the stages fetch, gpu-memory, boot and setup. Without an error the caller
// closes the Set; after one nothing of it is left. An error says which guest has ended, if one has.
func Open(ctx context.Context, o *Options) (s *Set, err error) {
	s = &Set{opt: o, cancel: func() {}}
	defer func() {
		if err != nil {
			err = errors.Join(s.Blame(ctx, err), s.Close())
			s = nil
		}
	}()
	d, err := o.Describe()
	if err != nil {
		return s, err
	}
	if err := o.Begin(ctx, Step{Stage: "fetch"}); err != nil {
		return s, err
	}
	if !o.InProc {
		var models []string
		for i := range d.Guests {
			for _, n := range d.Guests[i].NICs {
				models = append(models, n.Model)
			}
		}
		if s.im, err = Images(ctx, o.Fetch, unique(models), o.Lab != nil, o.note); err != nil {
			return s, err
		}
		s.close = append(s.close, s.im.Close)
	}
	if err := o.Begin(ctx, Step{Stage: "gpu-memory"}); err != nil {
		return s, err
	}
	conf := lab.Options{Log: o.Log, Services: o.Services}
	if !o.InProc {
		conf.Farewell = machines.Farewell
	}
	if o.Note != nil {
		conf.Note = func(name, text string) { o.Note("%s: %s", name, text) }
	}
	if s.Lab, err = lab.Open(d, conf); err != nil {
		return s, err
	}
	s.close = append(s.close, s.Lab.Close)
	if err := s.reach(&d); err != nil {
		return s, err
	}
	if o.Confine != nil {
		s.gate = broker.NewGate(o.Broker, len(s.Guests), o.Confine)
	}
	if o.Hook != nil {
		o.Hook(s)
	}
	return s, s.start(ctx)
}

func unique(list []string) (out []string) {
	seen := make(map[string]bool)
	for _, x := range list {
		if !seen[x] {
			out = append(out, x)
		}
		seen[x] = true
	}
	return out
}

// reach fills in the guests, and takes peer-to-peer from NICs that are to have none.
func (s *Set) reach(d *lab.Description) error {
	for i, hw := range s.Lab.Machines() {
		p := hw.Ports[0]
		g := &Guest{Name: hw.Name, HW: hw, Port: p}
		var gpu *gpumem.GPU
		for _, x := range hw.GPUs {
			if x.Name == d.Guests[i].GPUs[first(&d.Guests[i])].Name {
				gpu = x.GPU
			}
		}
		if gpu == nil {
			gpu = p.GPU().GPU
		}
		g.Memory = Memory{Name: hw.Name, GPU: gpu}
		g.conf = NodeConfig{Port: p, GPU: gpu, Family: s.opt.Family, Bind: 1, Loss: s.opt.loss(),
			Window: (s.opt.Window + HugePage - 1) &^ (HugePage - 1), Log: s.opt.Log}
		s.Guests = append(s.Guests, g)
		if s.opt.P2P.Of(i) {
			continue
		}
		c, err := lab.ParseChange("nic " + p.Name + " p2p=off")
		if err == nil {
			err = s.Lab.Apply(c)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// start boots the guests, and has them take their NICs.
func (s *Set) start(ctx context.Context) error {
	if err := s.opt.Begin(ctx, Step{Stage: "boot"}); err != nil {
		return err
	}
	s.Info = Info{Guest: "inproc", QEMU: "none", Kernel: "none", Accel: "none"}
	if s.im != nil {
		s.Info = Info{Guest: "qemu", QEMU: s.im.QEMU.Version, Kernel: s.im.Kernel.Version, Untested: s.im.Untested}
		begin := time.Now()
		if err := s.boot(ctx); err != nil {
			return err
		}
		s.Info.Accel = string(s.Guests[0].QEMU.Accel())
		s.Info.BootSeconds = time.Since(begin).Seconds()
	}
	if err := s.opt.Begin(ctx, Step{Stage: "setup"}); err != nil {
		return err
	}
	if s.im == nil {
		return s.inProcess(ctx)
	}
	if err := s.Each(ctx, setupTime, s.setup); err != nil {
		return s.im.BlameKernel(fmt.Errorf("set up its NIC: %w", err), machines.NewerKernel)
	}
	return nil
}

// boot boots all guests at the same time; one that fails ends the others.
func (s *Set) boot(ctx context.Context) error {
	mctx, cancel := context.WithCancel(ctx) // the machines live as long as the Set
	s.cancel = cancel
	var eg errgroup.Group
	var mu sync.Mutex
	for i, g := range s.Guests {
		eg.Go(func() error {
			c := BootConfig{Memory: s.opt.Memory, TimeLimit: 6 * time.Hour, Gate: s.gate, Log: s.opt.Log}
			if s.opt.Lab != nil {
				c.Memory, c.CPUs = s.opt.Lab.Machines[i].RAM, s.opt.Lab.Machines[i].CPUs
			}
			if s.opt.Keep != nil {
				console, err := s.opt.Keep("console-" + g.Name + ".log")
				if err != nil {
					cancel()
					return err
				}
				mu.Lock()
				s.close = append(s.close, console.Close)
				mu.Unlock()
				c.Console = console
			}
			q, err := Boot(mctx, s.im, g.HW, c)
			if err != nil {
				cancel()
				return err
			}
			g.QEMU = q
			return nil
		})
	}
	return eg.Wait()
}

// setupTime is how long a guest may take to take its NIC: it is emulated, and may share a small machine.
const setupTime = time.Minute

// setup has a guest in QEMU take its NIC.
func (s *Set) setup(ctx context.Context, g *Guest) error {
	if s.opt.Lab != nil {
		devices, err := Locate(ctx, g.QEMU.Agent(), g.HW.Ports[:1])
		if err != nil {
			return err
		}
		g.conf.Device = devices[0]
	}
	r, window, err := Setup(ctx, g.QEMU.Agent(), g.conf)
	if err != nil {
		return err
	}
	g.Node, g.Window = r, window
	return nil
}

// inProcess makes guests of this process.
func (s *Set) inProcess(ctx context.Context) error {
	if err := s.Each(ctx, setupTime, func(_ context.Context, g *Guest) error {
		node, err := InProcess(g.conf)
		if err != nil {
			return err
		}
		g.Node, g.near = node, node
		return nil
	}); err != nil || s.opt.Confine == nil {
		return err
	}
	return s.opt.Confine()
}

// Each has all guests do something at the same time, within a limit; 0: without one. The first error cancels the
// others; all of them are said.
func (s *Set) Each(ctx context.Context, limit time.Duration, f func(context.Context, *Guest) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if limit > 0 {
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	errs := make([]error, len(s.Guests))
	var work sync.WaitGroup
	for i, g := range s.Guests {
		work.Go(func() {
			err := f(ctx, g)
			if err == nil {
				return
			}
			if limit > 0 && errors.Is(err, context.DeadlineExceeded) {
				err = fmt.Errorf("not done after %v: %w", limit, err)
			}
			if !errors.Is(err, context.Canceled) || ctx.Err() == nil {
				errs[i] = fmt.Errorf("guest %s: %w", g.Name, err)
			}
			cancel()
		})
	}
	work.Wait()
	return errors.Join(errs...)
}

// Blame finds what is behind an error: an interruption, or a guest that is gone, explains whatever came of it.
func (s *Set) Blame(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	for _, g := range s.Guests {
		if g.QEMU == nil {
			continue
		}
		if gone := g.QEMU.Gone("in the middle of the run"); gone != nil {
			return fmt.Errorf("%w\nwhat it ended: %w", gone, err)
		}
	}
	return err
}

// Close ends the guests, all at the same time, and then takes the lab down.
func (s *Set) Close() error {
	errs := make([]error, len(s.Guests))
	var work sync.WaitGroup
	for i, g := range s.Guests {
		work.Go(func() {
			if g.near != nil {
				errs[i] = g.near.Close()
			}
			if g.QEMU != nil {
				errs[i] = g.QEMU.Close()
			}
		})
	}
	work.Wait()
	s.cancel()
	for i := len(s.close) - 1; i >= 0; i-- {
		errs = append(errs, s.close[i]())
	}
	s.close = nil
	return errors.Join(errs...)
}
