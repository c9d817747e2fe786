package guests

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"vnic.dev/vnic/cmd/vnic/internal/broker"
	"vnic.dev/vnic/cmd/vnic/internal/pcap"
	"vnic.dev/vnic/internal/guestnet"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/machine"
	"vnic.dev/vnic/internal/machine/qemu"
	"vnic.dev/vnic/internal/transfer"
)

// Guest is one of a Set's.
type Guest struct {
	Node transfer.Guest
	Memory

	Name string
	HW   *lab.Machine
	Port *lab.Port
	P2P  bool           // its NIC reaches its GPU's memory itself: by the flag, and in the lab's PCIe tree
	QEMU *machine.Guest // nil: in this process
	conf NodeConfig
	near *transfer.Node // of one in this process
}

// Config says how the guest has its NIC.
func (g *Guest) Config() NodeConfig { return g.conf }

// Lives is ctx as long as the guest has not ended: for what others do with its NIC, which may go on without it, so that
// nobody would be told. The caller calls end.
func (g *Guest) Lives(ctx context.Context) (_ context.Context, end func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	if g.QEMU == nil {
		return ctx, func() { cancel(nil) }
	}
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case <-g.QEMU.Done():
			cancel(fmt.Errorf("guest %s has ended", g.Name))
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		cancel(nil)
		<-watched
	}
}

// Booted is a Server that has booted, and whose kernel has its address.
type Booted struct {
	Name string
	Port *lab.Port
	QEMU *machine.Guest
	Addr netip.Addr // of Options.Family
}

// Info is what is known of a Set's guests.
type Info struct {
	Guest       string   `json:"guest"` // "qemu" or "inproc"
	QEMU        string   `json:"qemu"`
	Kernel      string   `json:"kernel"`
	Accel       string   `json:"accel"`
	BootSeconds float64  `json:"boot_seconds,omitempty"`
	Untested    []string `json:"untested,omitempty"`
}

// Captured is the part of a report that tells of a capture, which its caller made.
type Captured struct {
	Pcap *pcap.Report `json:"pcap,omitempty"`
}

// SetCapture sets it; nil: there was none.
func (c *Captured) SetCapture(p *pcap.Report) { c.Pcap = p }

// String is a line about them.
func (i *Info) String() string {
	if i.Guest != "qemu" {
		return i.Guest
	}
	return fmt.Sprintf("%s %s (%s), kernel %s, booted in %.1f s", i.Guest, i.QEMU, i.Accel, i.Kernel, i.BootSeconds)
}

// Set is a lab whose guests have all booted and taken their NICs.
type Set struct {
	Lab     *lab.Lab
	Guests  []*Guest
	Servers []*Booted
	Info    Info

	opt    *Options
	im     *machine.Images
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
		modules := machine.DriverModules(d.Guests)
		for _, x := range o.Servers {
			modules = append(modules, x.Modules...)
		}
		interfaces := o.Lab != nil || len(o.Servers) > 0 // whose kernels have NICs
		if s.im, err = Images(ctx, o.Fetch, unique(models), interfaces, o.note, modules...); err != nil {
			return s, err
		}
		s.close = append(s.close, s.im.Close)
	}
	if err := o.Begin(ctx, Step{Stage: "gpu-memory"}); err != nil {
		return s, err
	}
	if err := o.enough(); err != nil {
		return s, err
	}
	conf := lab.Options{Log: o.Log, Flows: lab.DefaultFlows, Sharing: o.Broker.Sharing}
	if conf.Services, err = o.services(); err != nil {
		return s, err
	}
	if !o.InProc {
		conf.Farewell = time.Duration(limits.GuestEnd)
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
		s.gate = broker.NewGate(o.Broker, len(s.Guests)+len(s.Servers), o.Confine)
	}
	if o.Hook != nil {
		o.Hook(s)
	}
	return s, s.start(ctx)
}

// Run opens a Set, has f use it, and closes it: whatever happens, nothing of it is left then. When ctx ends, its cause
// is returned.
func Run(ctx context.Context, o *Options, f func(*Set) error) error {
	s, err := Open(ctx, o)
	if err != nil {
		return OrCause(ctx, err)
	}
	if err = f(s); err != nil {
		err = s.Blame(ctx, err)
	}
	cerr := s.Close()
	switch {
	case err != nil:
		return OrCause(ctx, err)
	case cerr != nil:
		return fmt.Errorf("clearing up: %w", cerr)
	}
	return nil
}

// OrCause puts the end of ctx before what came of it.
func OrCause(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// InMode is an error in one of modes, which it names if there are others.
func InMode(modes []string, mode string, err error) error {
	if len(modes) < 2 {
		return err
	}
	return fmt.Errorf("mode %s: %w", mode, err)
}

// Cost is how a table says guest CPU seconds for each GB; nil: the guest shares this process.
func Cost(perGB *float64) string {
	if perGB == nil {
		return "-"
	}
	return fmt.Sprintf("%.2f", *perGB)
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
		if i >= len(s.Lab.Machines())-len(s.opt.Servers) {
			addr := p.Addr4
			if s.opt.Family == 6 {
				addr = p.Addr6
			}
			s.Servers = append(s.Servers, &Booted{Name: hw.Name, Port: p, Addr: addr.Addr()})
			continue
		}
		g := &Guest{Name: hw.Name, HW: hw, Port: p}
		mem := hw.GPUs[first(&d.Guests[i])]
		gpu := mem.GPU
		g.P2P = s.opt.P2P.Of(i) && !d.NoP2P && hw.Tree.Path(p.Place, mem.Place).P2P()
		g.Memory = Memory{Name: hw.Name, GPU: gpu}
		g.conf = NodeConfig{Port: p, GPU: gpu, Family: s.opt.Family, Bind: s.opt.bind(), Loss: s.opt.loss(),
			Window: (s.opt.window(i) + HugePage - 1) &^ (HugePage - 1), Gateways: s.opt.gateways(),
			Log: s.opt.Log}
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
	if err := s.Each(ctx, limits.Setup.Here(), s.setup); err != nil {
		return s.im.BlameKernel(fmt.Errorf("set up its NIC: %w", err), qemu.NewerKernel)
	}
	for _, b := range s.Servers {
		if err := s.network(ctx, b); err != nil {
			return fmt.Errorf("guest %s: %w", b.Name, err)
		}
	}
	return nil
}

// boot boots all guests at the same time; one that fails ends the others.
func (s *Set) boot(ctx context.Context) error {
	mctx, cancel := context.WithCancel(ctx) // the machines live as long as the Set
	s.cancel = cancel
	var eg errgroup.Group
	one := func(to **machine.Guest, hw *lab.Machine, c BootConfig) {
		eg.Go(func() (err error) {
			if *to, err = s.bootOne(mctx, hw, c); err != nil {
				cancel()
			}
			return err
		})
	}
	for i, g := range s.Guests {
		c := BootConfig{Memory: s.opt.Memory}
		if s.opt.Lab != nil {
			c.Memory, c.CPUs = s.opt.Lab.Machines[i].RAM, s.opt.Lab.Machines[i].CPUs
		}
		if len(s.opt.Servers) > 0 {
			c.Modules = Modules(s.im, g.Port.Model.Name, s.opt.Lab != nil)
		}
		one(&g.QEMU, g.HW, c)
	}
	for i, b := range s.Servers {
		x := s.opt.Servers[i]
		one(&b.QEMU, s.Lab.Machine(len(s.Guests)+i), BootConfig{Memory: serverRAM, Disks: x.Disks,
			Modules: append(slices.Clone(x.Modules), s.im.Drivers(x.Model)...)})
	}
	return eg.Wait()
}

// bootOne boots a guest.
func (s *Set) bootOne(ctx context.Context, hw *lab.Machine, c BootConfig) (*machine.Guest, error) {
	c.TimeLimit, c.Gate, c.Log, c.Accel = limits.GuestsRun.Here(), s.gate, s.opt.Log, s.opt.Accel
	return Boot(ctx, s.im, hw, c)
}

// network gives a server's kernel its address.
func (s *Set) network(ctx context.Context, b *Booted) error {
	ctx, cancel := context.WithTimeout(ctx, limits.Setup.Here())
	defer cancel()
	found, err := guestnet.Apply(ctx, b.QEMU.Agent(), guestnet.Config{Interfaces: []guestnet.Interface{{
		MAC: net.HardwareAddr(b.Port.MAC[:]).String(), MTU: b.Port.MTU,
		Addrs: []netip.Prefix{b.Port.Addr4, b.Port.Addr6}}}, Gateways: s.opt.gateways()})
	if err == nil && found.NotReady != "" {
		err = errors.New(found.NotReady)
	}
	return err
}

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
	if err := s.Each(ctx, limits.Setup.Here(), func(_ context.Context, g *Guest) error {
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

// machines are the guests in QEMU that have booted.
func (s *Set) machines() (list []*machine.Guest) {
	for _, g := range s.Guests {
		list = append(list, g.QEMU)
	}
	for _, b := range s.Servers {
		list = append(list, b.QEMU)
	}
	return slices.DeleteFunc(list, func(q *machine.Guest) bool { return q == nil })
}

// Blame finds what is behind an error: an interruption, or a guest that is gone, explains whatever came of it.
func (s *Set) Blame(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	for _, q := range s.machines() {
		if gone := q.Gone("in the middle of the run"); gone != nil {
			return fmt.Errorf("%w\nwhat it ended: %w", gone, err)
		}
	}
	return err
}

// Close ends the guests, all at the same time, and then takes the lab down.
func (s *Set) Close() error {
	var ends []func() error
	for _, g := range s.Guests {
		if g.near != nil {
			ends = append(ends, g.near.Close)
		}
	}
	for _, q := range s.machines() {
		ends = append(ends, q.Close)
	}
	errs := make([]error, len(ends))
	var work sync.WaitGroup
	for i, end := range ends {
		work.Go(func() { errs[i] = end() })
	}
	work.Wait()
	s.cancel()
	for i := len(s.close) - 1; i >= 0; i-- {
		errs = append(errs, s.close[i]())
	}
	s.close = nil
	return errors.Join(errs...)
}
