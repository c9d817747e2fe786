package run

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/machine"
	"vnic.dev/vnic/internal/nic"
	"vnic.dev/vnic/internal/session"
	"vnic.dev/vnic/internal/transfer"
)

// runner is a run: a Session, and the transfers between two guests. A rail is NIC i of one guest and NIC
// i of the other. Each direction in which a rail transfers is a stream, with its own seed, part of GPU memory,
// connections and proof. In each mode the streams begin their first transfers together.
type runner struct {
	*session.Session
	opt     *Options
	desc    lab.Description
	ways    [][2]int // directions in which each rail transfers: numbers of the sending and the receiving guest
	streams []*stream
	begun   func()      // called by each stream when its first transfer of a mode begins
	kept    *os.File    // file for the NICs' counters; nil: none
	host    *host       // stack of this vnic's own port, made by meetPeer; nil without Options.Half
	peer    *peer       // the vnic on the other host, once meetPeer has met it; else nil
	over    atomic.Bool // the other host has our verdict, or we have closed the connection
}

// planned returns a runner with its streams, without a Session.
func planned(o *Options) (*runner, error) {
	r := &runner{opt: o, ways: [][2]int{{0, 1}}, begun: func() {}}
	if o.Bidir {
		r.ways = append(r.ways, [2]int{1, 0})
	}
	d, err := o.describe()
	if err != nil {
		return nil, err
	}
	r.desc = d.Complete()
	return r, r.plan()
}

// newRunner makes a runner and its lab, whose guests have not booted. An uplink that fails before over is set
// calls fail.
func newRunner(ctx context.Context, o *Options, fail func(error)) (*runner, error) {
	r, err := planned(o)
	if err != nil {
		return nil, err
	}
	w := session.World{Lab: r.desc, Models: o.guestModels(&r.desc), Modules: machine.DriverModules(r.desc.Guests),
		Interfaces: o.Rails > 0, Keep: o.keep}
	for i := range r.desc.Guests {
		if !o.away(i) {
			ram, cpus := o.machine(i)
			copies := limits.Limit(time.Duration(o.Size>>20*uint64(max(1, 2*o.Rails))) * time.Second)
			w.Guests = append(w.Guests, session.BootConfig{Memory: ram, CPUs: cpus,
				TimeLimit: (limits.TransferGuest + copies).Here()})
		}
	}
	if o.Half != "" {
		w.Lab, w.Services = o.halve(r.desc), r.uplinks(fail)
	}
	if r.Session, err = session.Open(ctx, &o.Common, w); err != nil {
		return nil, err
	}
	r.attach()
	if r.kept, err = o.keep("counters.json"); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

func (r *runner) attach() {
	nodes := [2]int{} // by the guest's number: how many Nodes it has so far
	for _, s := range r.streams {
		s.r = r
		s.links.edges = r.Lab.Edges()
		for i, e := range s.ends {
			here := s.places[i]
			if e.Guest = r.guest(here.guest); e.Guest == nil {
				continue
			}
			e.Port = e.HW.Ports[here.nic]
			e.Memory = session.Memory{Name: e.Name, GPU: e.HW.GPUs[here.gpu].GPU}
			e.Config = session.NodeConfig{Port: e.Port, GPU: e.GPU, Family: r.opt.Family, Bind: r.opt.BindQueues,
				Loss: r.opt.loss(), Window: s.plan.window(), Number: nodes[here.guest], Log: r.opt.Log}
			e.digest = e.engineDigest
			nodes[here.guest]++
		}
	}
}

// guest returns guest i of the description; nil: it is on another host.
func (r *runner) guest(i int) *session.Guest {
	switch {
	case r.opt.Half == "":
		return r.Guests[i]
	case r.opt.away(i):
		return nil
	}
	return r.Guests[0]
}

// take makes a guest set up its driver and stack on each of its NICs that transfer, with a Node for each end
// (Node.Take). In QEMU with rails the guest first finds the NICs by their MACs.
func (r *runner) take(ctx context.Context, g *session.Guest) error {
	var devices []string
	if g.QEMU != nil && r.opt.Rails > 0 {
		if err := session.Within(ctx, r.opt.patience(), func(ctx context.Context) (err error) {
			devices, err = session.Locate(ctx, g.QEMU.Agent(), g.HW.Ports[:r.opt.Rails])
			return err
		}); err != nil {
			return err
		}
	}
	first := make(map[*lab.Port]*session.Node)
	for _, e := range r.endsOf(g) {
		if devices != nil {
			e.Config.Device = devices[slices.Index(g.HW.Ports, e.Port)]
		}
		if err := session.Within(ctx, r.opt.patience(), func(ctx context.Context) error {
			return e.Take(ctx, first[e.Port])
		}); err != nil {
			return err
		}
		if first[e.Port] == nil {
			first[e.Port] = &e.Node
			r.OnClose(e.Node.Close)
		}
	}
	return nil
}

func (r *runner) ends() (list []*end) {
	for _, s := range r.streams {
		list = append(list, s.here()...)
	}
	return list
}

func (r *runner) endsOf(g *session.Guest) []*end {
	return slices.DeleteFunc(r.ends(), func(e *end) bool { return e.Guest != g })
}

func (r *runner) ports() (list []*nic.Port) {
	for _, g := range r.Guests {
		for _, p := range g.HW.Ports[:r.opt.rails()] {
			list = append(list, p.NIC())
		}
	}
	return list
}

// blame returns a likely cause of err: the cause of ctx's end; or the end of a guest, with err; or err, with removed
// devices of the first stream. If there is another host, and no guest here has ended, it first waits for that host's
// reason, which ends ctx, limits.OtherHost at most.
func (r *runner) blame(ctx context.Context, err error) error {
	if r.peer != nil && !r.Gone() {
		select {
		case <-ctx.Done():
		case <-time.After(limits.OtherHost.Here()):
		}
	}
	return r.Blame(ctx, r.streams[0].blameRemoval(err))
}

// close ends the guests, then closes the lab. If a NIC of a guest in this process has two Nodes, close first
// ends the transfers of both, because the Close of the first Node closes the NIC.
func (r *runner) close() error {
	if r.opt.InProc && r.opt.Bidir {
		var eg errgroup.Group
		ctx, cancel := context.WithTimeout(context.Background(), r.opt.patience())
		defer cancel()
		for _, e := range r.ends() {
			if e.Ops != nil {
				eg.Go(func() error { return transfer.Finish(ctx, e.Ops) })
			}
		}
		_ = eg.Wait() // Close of the Nodes frees what Finish could not
	}
	return r.Close()
}

// end is one side of a stream. On another host only Name, base and addr are set.
type end struct {
	session.Node
	base uint64       // begin of its part of the GPU's memory; if the kernel drives the NIC, 0: of the end's window
	addr netip.Prefix // the NIC's, of the family Options.Family

	// digest computes the digest of a range of GPU memory: engineDigest, or a test's.
	digest func(ctx context.Context, off, n uint64, hurry <-chan struct{}) (sum, error)
}

func (e *end) away() bool { return e.Guest == nil }

func (e *end) nic() *nic.Port { return e.Port.NIC() }
