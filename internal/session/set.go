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
	*Guest
	Port *lab.Port
	Addr netip.Addr // of Options.Family
}

// Captured is the part of a report that tells of a capture, which its caller made.
type Captured struct {
	Pcap *pcap.Report `json:"pcap,omitempty"`
}

// SetCapture sets it; nil: there was none.
func (c *Captured) SetCapture(p *pcap.Report) { c.Pcap = p }

// End writes a report for people, whose beginning b has: behind that are the last lines. nic is the model, "" if there
// are several.
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

// Set is a Session whose guests have all taken their first NIC.
type Set struct {
	*Session
	Nodes   []*Node // of the guests that are no Servers, in their order
	Servers []*Booted
	opt     *Options
}

// OpenSet makes the lab and boots its guests: the stages fetch, gpu-memory, boot and setup. Without an error the caller
// closes the Set; after one nothing of it is left. An error says which guest has ended, if one has.
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

// world is what the Session of a Set opens.
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
		k := i - (len(w.Lab.Guests) - len(o.Servers)) // of Servers
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

// Do opens a Set, calls f to fill a report, and closes the Set: whatever happens, nothing of it is left then. After an
// error of f there is no report; an error of check, what the report does not prove, comes with it. When ctx ends, its
// cause is returned.
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

// InModes calls f for each of modes, one after the other. An error names its mode, behind flag, if there are others.
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

// Cost is how a table says guest CPU seconds for each GB; nil: the guest shares this process.
func Cost(perGB *float64) string {
	if perGB == nil {
		return "-"
	}
	return fmt.Sprintf("%.2f", *perGB)
}

// Verified is the cell of a table for a comparison of a run's bytes: by says with what; nil: there was none.
func Verified(right *bool, by, wrong string) string {
	switch {
	case right == nil:
		return "-"
	case *right:
		return "every byte, with " + by
	}
	return wrong
}

// reach makes the nodes, and takes peer-to-peer from NICs that shall have none.
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
			Config: NodeConfig{Port: p, GPU: mem.GPU, Family: s.opt.Family, Bind: s.opt.bind(), Loss: s.opt.loss(),
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

// network gives a server's kernel its address.
func (s *Set) network(ctx context.Context, b *Booted) error {
	found, err := guestnet.Apply(ctx, b.QEMU.Agent(), guestnet.Config{Interfaces: []guestnet.Interface{{
		MAC: net.HardwareAddr(b.Port.MAC[:]).String(), MTU: b.Port.MTU,
		Addrs: []netip.Prefix{b.Port.Addr4, b.Port.Addr6}}}, Gateways: s.opt.gateways()})
	if err == nil && found.NotReady != "" {
		err = errors.New(found.NotReady)
	}
	return err
}

// setup makes a guest take its NIC: a Server by its kernel, any other as a Node.
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

// Each calls f for all nodes at the same time, as the function of this name does.
func (s *Set) Each(ctx context.Context, limit time.Duration, f func(context.Context, *Node) error) error {
	return Each(ctx, limit, s.Nodes, func(n *Node) string { return n.title() }, f)
}
