package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"vnic.dev/vnic/internal/guestnet"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/machine"
	"vnic.dev/vnic/internal/report/pcap"
)

// Lives returns a context that ends with ctx, when the guest's QEMU ends, or when the caller calls end, which it must.
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

// Booted is the guest of a Server.
type Booted struct {
	*Guest
	Port *lab.Port
	Addr netip.Addr // of the guest's NIC, of the address family Options.Family
}

// Captured is the part of a report that describes a packet capture.
type Captured struct {
	Pcap *pcap.Report `json:"pcap,omitempty"`
}

// SetCapture sets the description of the capture; nil: there was none.
func (c *Captured) SetCapture(p *pcap.Report) { c.Pcap = p }

// End appends the last lines to the report in b, and writes the report to w. nic is the model of the guests' NICs; ""
// omits it.
func (c *Captured) End(w io.Writer, b *strings.Builder, i *Info, nic string, seed uint64) error {
	if nic != "" {
		nic = "; NIC: " + nic
	}
	fmt.Fprintf(b, "guests: %v%s; seed %d\n", i, nic, seed)
	if c.Pcap != nil {
		fmt.Fprintln(b, c.Pcap)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// Set is a Session in which each guest but the Servers has taken its first NIC. Servers' kernels drive theirs.
type Set struct {
	*Session
	Nodes   []*Node // of all guests but the Servers, in their order
	Servers []*Booted
	opt     *Options
}

// OpenSet makes the lab, boots its guests, and makes them take their NICs: the stages fetch, gpu-memory, boot and
// setup. After an error it has closed everything.
func OpenSet(ctx context.Context, o *Options) (s *Set, err error) {
	w, err := o.world()
	if err != nil {
		return nil, err
	}
	s = &Set{opt: o}
	if s.Session, err = Open(ctx, &o.Common, w); err != nil {
		return nil, err
	}
	if err = s.reach(&w.Lab); err == nil {
		if o.Hook != nil {
			o.Hook(s)
		}
		err = s.Boot(ctx)
	}
	if err == nil {
		err = s.Session.Setup(ctx, limits.Setup.Here(), s.setup)
	}
	if err != nil {
		return nil, errors.Join(s.Blame(ctx, err), s.Close())
	}
	return s, nil
}

func (o *Options) world() (w World, err error) {
	if w.Lab, err = o.Describe(); err != nil {
		return w, err
	}
	if w.Services, err = o.services(); err != nil {
		return w, err
	}
	w.Interfaces = o.Lab != nil || len(o.Servers) > 0
	w.Modules, w.Enough = machine.DriverModules(w.Lab.Guests), o.enough
	for i, g := range w.Lab.Guests {
		for _, n := range g.NICs {
			w.Models = append(w.Models, n.Model)
		}
		b := BootConfig{Memory: o.Memory, TimeLimit: limits.GuestsRun.Here()}
		k := i - (len(w.Lab.Guests) - len(o.Servers)) // index in Servers; negative: no Server
		switch {
		case k >= 0:
			x := &o.Servers[k]
			w.Modules = append(w.Modules, x.Modules...)
			b.Memory, b.Disks = serverRAM, x.Disks
			b.Load = func(im *machine.Images) []string { return append(slices.Clone(x.Modules), im.Drivers(x.Model)...) }
		case o.Lab != nil:
			b.Memory, b.CPUs = o.Lab.Machines[i].RAM, o.Lab.Machines[i].CPUs
		}
		if k < 0 && len(o.Servers) > 0 {
			b.Load = func(im *machine.Images) []string { return Modules(im, g.NICs[0].Model, o.Lab != nil) }
		}
		w.Guests = append(w.Guests, b)
	}
	return w, nil
}

// Do opens a Set, calls f to fill a report, closes the Set, and calls check. Do returns check's error with the report,
// other errors without. If f or OpenSet has failed and ctx has ended, the error is the cause of ctx's end.
func Do[R any](ctx context.Context, o *Options, f func(*Set, *R) error, check func(*R) error) (*R, error) {
	s, err := OpenSet(ctx, o)
	if err != nil {
		return nil, OrCause(ctx, err)
	}
	rep := new(R)
	if err = f(s, rep); err != nil {
		err = s.Blame(ctx, err)
	}
	cerr := s.Close()
	switch {
	case err != nil:
		return nil, OrCause(ctx, err)
	case cerr != nil:
		return nil, fmt.Errorf("clearing up: %w", cerr)
	}
	return rep, check(rep)
}

// InModes calls f for each of modes, one after the other, until f fails. With several modes, the error names
// the mode, after flag.
func InModes(flag string, modes []string, f func(i int, mode string) error) error {
	for i, mode := range modes {
		err := f(i, mode)
		if err != nil && len(modes) > 1 {
			err = fmt.Errorf("mode %s%s: %w", flag, mode, err)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Cost formats guest CPU seconds for each GB for a table; "-" for nil, an unknown cost.
func Cost(perGB *float64) string {
	if perGB == nil {
		return "-"
	}
	return fmt.Sprintf("%.2f", *perGB)
}

// Verified returns a cell of a table about a run's bytes. right is nil if they were not compared ("-"); by names what
// they were compared with; wrong is the text if they differ.
func Verified(right *bool, by, wrong string) string {
	switch {
	case right == nil:
		return "-"
	case *right:
		return "every byte, with " + by
	}
	return wrong
}

// reach makes the Nodes and the Servers, and turns off the peer-to-peer access of Nodes' NICs as Options.P2P says.
func (s *Set) reach(d *lab.Description) error {
	for i, g := range s.Guests {
		p := g.HW.Ports[0]
		if i >= len(s.Guests)-len(s.opt.Servers) {
			addr := NodeConfig{Port: p, Family: s.opt.Family}
			s.Servers = append(s.Servers, &Booted{Guest: g, Port: p, Addr: addr.Addr().Addr()})
			continue
		}
		mem := g.HW.GPUs[first(&d.Guests[i])]
		n := &Node{Guest: g, Name: g.Name, Port: p, Memory: Memory{Name: g.Name, GPU: mem.GPU},
			P2P: s.opt.P2P.Of(i) && !d.NoP2P && g.HW.Tree.Path(p.Place, mem.Place).P2P(),
			Config: NodeConfig{Port: p, GPU: mem.GPU, Family: s.opt.Family, Bind: s.opt.bind(),
				Loss:     LinkLoss(&s.opt.Impairment, s.opt.Lab),
				Window:   (s.opt.window(i) + HugePage - 1) &^ (HugePage - 1),
				Gateways: s.opt.gateways(), Log: s.opt.Log}}
		s.Nodes = append(s.Nodes, n)
		s.OnClose(n.Close)
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

func (s *Set) network(ctx context.Context, b *Booted) error {
	found, err := guestnet.Apply(ctx, b.QEMU.Agent(), guestnet.Config{Interfaces: []guestnet.Interface{{
		MAC: net.HardwareAddr(b.Port.MAC[:]).String(), MTU: b.Port.MTU,
		Addrs: []netip.Prefix{b.Port.Addr4, b.Port.Addr6}}}, Gateways: s.opt.gateways()})
	if err == nil && found.NotReady != "" {
		err = errors.New(found.NotReady)
	}
	return err
}

// setup makes a Server's kernel configure its NIC, and another guest take its first NIC.
func (s *Set) setup(ctx context.Context, g *Guest) error {
	for _, b := range s.Servers {
		if b.Guest == g {
			return s.network(ctx, b)
		}
	}
	n := s.Nodes[slices.Index(s.Guests, g)]
	if g.QEMU != nil && s.opt.Lab != nil {
		devices, err := Locate(ctx, g.QEMU.Agent(), g.HW.Ports[:1])
		if err != nil {
			return err
		}
		n.Config.Device = devices[0]
	}
	return n.Take(ctx, nil)
}

// Each is the function Each for all Nodes.
func (s *Set) Each(ctx context.Context, limit time.Duration, f func(context.Context, *Node) error) error {
	return Each(ctx, limit, s.Nodes, func(n *Node) string { return n.title() }, f)
}
