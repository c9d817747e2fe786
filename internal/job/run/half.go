package run

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"vnic.dev/vnic/internal/driver"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/lab/labfile"
	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/session"
	"vnic.dev/vnic/internal/version"
	"vnic.dev/vnic/internal/wire/uplink"
	"vnic.dev/vnic/stack"
)

// With Options.Half this vnic runs one of the lab's two guests; a vnic on another host runs the other one
// from the same lab file, and uplinks join their switches. Each vnic counts, verifies and judges its end of a
// transfer. Each vnic also has a port of its own on the joined network, over which they wait for each other
// and exchange their verdicts (peer).

// Half names the lab's guest on this host and the other one, and has the other host's verdict.
type Half struct {
	Guest string `json:"guest"` // the guest on this host
	Peer  string `json:"peer"`  // the guest on the other host
	// whether the other host's side was proved; null: it did not say
	PeerProved *bool  `json:"peer_proved" jsonschema:"nullable"`
	PeerSays   string `json:"peer_says,omitempty"` // what its side did not prove
}

func (o *Options) away(i int) bool {
	return o.Half != "" && o.Lab != nil && i < len(o.Lab.Guests) && o.Lab.Guests[i].Name != o.Half
}

// LabMemory returns how many bytes of memory a lab's guests on this host have: of GPUs and, in QEMU, RAM.
func (o *Options) LabMemory(l *labfile.Lab) uint64 {
	part := *l
	part.Guests, part.Machines = nil, nil
	for i, g := range l.Guests {
		if o.Half == "" || g.Name == o.Half {
			part.Guests, part.Machines = append(part.Guests, g), append(part.Machines, l.Machines[i])
		}
	}
	return part.Memory(!o.InProc)
}

// here returns the number of the guest on this host and that of the other guest; without Half 0 and 1.
func (o *Options) here() (self, other int) {
	if o.away(0) {
		return 1, 0
	}
	return 0, 1
}

func (o *Options) checkHalf() error {
	if o.Half == "" {
		return nil
	}
	if o.Lab == nil {
		return fmt.Errorf("--guest %s: qemu or inproc; or a guest of a lab file, with --lab", o.Half)
	}
	var names []string
	for _, g := range o.Lab.Guests {
		names = append(names, g.Name)
	}
	if !slices.Contains(names, o.Half) {
		return fmt.Errorf("--guest %s: the lab file has no such guest, but %s", o.Half, strings.Join(names, ", "))
	}
	self, other := o.here()
	switch {
	case len(names) != 2:
		return nil // checkLab returns an error for it
	case o.Scale != "" || o.MustShare:
		return fmt.Errorf("--guest %s: --scale and --check are of links of both guests, and one is on another host", o.Half)
	case len(o.Uplinks) == 0:
		return fmt.Errorf("--guest %s: nothing leads to the host of guest %s: name an uplink in the lab file, or by "+
			"--uplink (docs/uplinks.md)", names[self], names[other])
	case o.PeerSecs < 1:
		return fmt.Errorf("--peer-wait %d: at least 1 second", o.PeerSecs)
	}
	return o.checkOwn()
}

// checkOwn returns an error if a NIC of the lab file has the MAC of one of the vnics' own ports, or an IPv4 subnet
// that overlaps theirs.
func (o *Options) checkOwn() error {
	for n := range o.Lab.AllNICs() {
		for i := range 2 {
			switch {
			case n.Addr4.IsValid() && n.Addr4.Overlaps(hostAddr(i)):
				return fmt.Errorf("--guest %s: NIC %s is in %v, and the two hosts meet in %v: give it another ipv4", o.Half,
					n.Name, n.Addr4.Masked(), hostAddr(i).Masked())
			case n.MAC == lab.MAC(hostMAC+i):
				return fmt.Errorf("--guest %s: NIC %s has the mac %v, which is a host's own: give it another", o.Half, n.Name,
					net.HardwareAddr(n.MAC[:]))
			}
		}
	}
	return nil
}

// hello returns this host's hello: its guest, and the settings and the lab on which the hosts must agree.
func (o *Options) hello() (hello, error) {
	l := *o.Lab
	l.Uplinks = nil // the hosts' uplinks may differ
	text, err := l.YAML()
	h := hello{Guest: o.Half, Lab: string(text)}
	for _, s := range []struct {
		flag  string
		value any
	}{{"--seed", o.Seed}, {"--size", lab.FormatBytes(o.Size)}, {"--mode", strings.Join(o.Modes, " and ")},
		{"--rails", o.Rails}, {"--bidir", o.Bidir}, {"--family", o.Family}, {"--digest", o.Digest},
		{"--hold-tokens", o.HoldTokens}} {
		h.Settings = append(h.Settings, [2]string{s.flag, fmt.Sprint(s.value)})
	}
	return h, err
}

// Addresses of the vnics' own ports.
const (
	hostMAC  = lab.MaxPorts // number, for lab.MAC, of the MAC of guest 0's vnic; guest 1's has the next one
	hostPort = 5200         // TCP port at which guest 0's vnic listens
)

func hostAddr(i int) netip.Prefix {
	b := lab.Addr4(i).Addr().As4()
	b[2]--
	return netip.PrefixFrom(netip.AddrFrom4(b), 24)
}

// halve reduces a complete description to this host's guest, and adds a machine with this vnic's own port.
func (o *Options) halve(d lab.Description) lab.Description {
	self, _ := o.here()
	g := d.Guests[self]
	mtu := slices.MinFunc(g.NICs, func(a, b lab.NIC) int { return a.MTU - b.MTU }).MTU
	name := "host-" + g.Name
	d.Guests = []lab.Guest{g, {Name: name, NICs: []lab.NIC{{Name: name, Model: lab.Virtio, MAC: lab.MAC(hostMAC + self),
		Addr4: hostAddr(self), NICOptions: lab.NICOptions{MTU: mtu}, QueuePairs: 1}}}}
	return d
}

func (r *runner) local(script []lab.Event) (list []lab.Event) {
	for _, e := range script {
		for _, m := range r.Guests {
			if slices.ContainsFunc(m.HW.Ports, func(p *lab.Port) bool { return p.Name == e.Change.Of }) ||
				slices.ContainsFunc(m.HW.GPUs, func(g *lab.GPUMemory) bool { return g.Name == e.Change.Of }) {
				list = append(list, e)
			}
		}
	}
	return list
}

// uplinks returns services that join this host's switch to the other host's. If an uplink fails before over is set,
// its service calls fail with the reason, which ends the run.
func (r *runner) uplinks(fail func(error)) (list []lab.Service) {
	_, other := r.opt.here()
	for _, c := range r.opt.Uplinks {
		list = append(list, lab.Uplink(uplink.Options{Config: c, Keep: r.opt.Keeper, Failed: func(err error) {
			switch {
			case r.over.Load():
			case errors.Is(err, uplink.ErrLoop):
				fail(r.twice(err))
			default:
				fail(fmt.Errorf("what leads to the host of guest %s ended: %w", r.desc.Guests[other].Name, err))
			}
		}}))
	}
	return list
}

// twice returns an error with the likely reasons why an uplink received frames from a MAC of this host's switch. err
// is the error that followed.
func (r *runner) twice(err error) error {
	self, _ := r.opt.here()
	return fmt.Errorf("the other host runs guest %s, too, or the uplink leads back here: %w", r.desc.Guests[self].Name,
		err)
}

// looped reports whether an uplink has received, and dropped, a frame from a MAC of this host's switch.
func (r *runner) looped() bool {
	for _, l := range r.Lab.Switch().Links() {
		if u, ok := l.Port().(interface{ UplinkStats() map[string]uint64 }); ok && u.UplinkStats()[uplink.Loop] > 0 {
			return true
		}
	}
	return false
}

// host is the network stack of this vnic's own port. addr is its address, peer the other vnic's.
type host struct {
	*stack.Stack
	addr, peer netip.AddrPort
}

func newHost(p *lab.Port, peer netip.Addr, o *Options) (*host, error) {
	n, err := p.InProcess(driver.Options{QueuePairs: p.QueuePairs, HostQueues: p.QueuePairs, Log: o.Log})
	if err != nil {
		return nil, err
	}
	s, err := stack.New(n, n.Control(), stack.Options{Addresses: []netip.Prefix{p.Addr4}, MTU: p.MTU, RACK: true})
	if err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return &host{s, netip.AddrPortFrom(p.Addr4.Addr(), hostPort), netip.AddrPortFrom(peer, hostPort)}, nil
}

const dialAgain = 200 * time.Millisecond

func (h *host) dial(ctx context.Context) (halfCloser, error) {
	for {
		one, cancel := context.WithTimeout(ctx, limits.DialHost.Here())
		c, err := h.Dial(one, netip.AddrPort{}, h.peer)
		cancel()
		if err == nil {
			return c, nil
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(dialAgain):
		}
	}
}

// accept waits for a connection from the other vnic. Meanwhile it dials the address of guest 1's vnic, which does not
// listen: if the other host runs the same guest as this one, it so receives frames from its own MAC, and reports them.
func (h *host) accept(ctx context.Context) (halfCloser, error) {
	l, err := h.Listen(h.addr)
	if err != nil {
		return nil, err
	}
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	defer func() { _ = l.Close() }()
	calling, cancel := context.WithCancel(ctx)
	var work sync.WaitGroup
	work.Go(func() {
		for calling.Err() == nil {
			if c, err := h.dial(calling); err == nil {
				_ = c.Close()
			}
		}
	})
	defer work.Wait()
	defer cancel()
	c, err := l.AcceptConn()
	if err != nil {
		return nil, session.OrCause(ctx, err)
	}
	return c, nil
}

// silence returns how long a connected peer may send nothing.
func (o *Options) silence() time.Duration { return o.patience() / 3 }

// meetPeer connects to the vnic on the other host, and checks that both run halves of the same transfer. It sets
// r.host and r.peer. If the connection later ends before over is set, fail gets the reason.
func (r *runner) meetPeer(ctx context.Context, fail func(error)) error {
	o := r.opt
	self, other := o.here()
	ours, err := o.hello()
	if err != nil {
		return err
	}
	if r.host, err = newHost(r.Lab.Machine(1).Ports[0], hostAddr(other).Addr(), o); err != nil {
		return fmt.Errorf("a port of our own: %w", err)
	}
	limit := limits.Host.Unless(time.Duration(o.PeerSecs) * time.Second)
	guest := r.desc.Guests[other].Name
	o.Tell("waiting for the host that runs guest %s, for %v at most", guest, limit)
	wait, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("no vnic that runs guest %s came in %v: start it on "+
		"the other host with --guest %s, the same lab file and the same --seed; the uplinks have to lead to each other",
		guest, limit, guest))
	defer cancel()
	find := r.host.accept
	if self == 1 {
		find = r.host.dial
	}
	for {
		conn, err := find(wait)
		if err != nil && r.looped() {
			return r.twice(err)
		}
		if err != nil {
			return err
		}
		r.over.Store(false)
		p := newPeer(conn, guest, o.silence(), &r.over)
		theirs, err := p.greet(wait, ours)
		differs := error(nil)
		if err == nil {
			if differs = ours.differs(&theirs); differs == nil {
				_, err = p.meet(wait, "met", "") // without an error the peer has accepted our hello
			}
		} else if errors.As(err, new(version.Error)) {
			differs, err = err, nil
		}
		if err != nil && wait.Err() == nil { // it was no vnic, or the connection ended: wait for another
			p.close(nil)
			continue
		}
		if err = cmp.Or(differs, err); err != nil {
			p.close(nil)
			return err
		}
		p.watch(fail)
		r.peer = p
		o.Tell("met the host that runs guest %s", guest)
		return nil
	}
}

// step sends ours to the other host at a step (what) of this round, and waits for that host's text at the same step.
// Without another host it returns "" at once.
func (t *round) step(ctx context.Context, what, ours string) (theirs string, err error) {
	p := t.s.r.peer
	if p == nil {
		return "", nil
	}
	from, to := t.s.ends[0].Name, t.s.ends[1].Name
	return p.meet(ctx, fmt.Sprintf("%s %s to %s, round %d, %s", t.mode, from, to, t.number, what), ours)
}

// moved waits until the other host, if there is one, has also ended the transfer. The receiving host then takes the
// source's digest from the sending host; it is zero unless Options.Digest is DigestPieces.
func (t *round) moved(ctx context.Context) error {
	ours := ""
	if !t.s.ends[0].away() {
		ours = hex.EncodeToString(t.source[:])
	}
	theirs, err := t.step(ctx, "moved", ours)
	if err != nil || !t.s.ends[0].away() {
		return err
	}
	b, err := hex.DecodeString(theirs)
	if err != nil || len(b) != len(t.source) {
		return fmt.Errorf("what the other host says is no digest: %s", printable(theirs))
	}
	t.source = sum(b)
	return nil
}

// conclude exchanges verdicts with the other host if there is one, and if err is nil or an ErrProof. It returns err,
// joined with what the other host did not prove, or with the reason why the exchange failed. rep.Half gets the other
// host's verdict.
func (r *runner) conclude(ctx context.Context, rep *Report, err error) error {
	if r.peer == nil || err != nil && !errors.Is(err, ErrProof) {
		return err
	}
	ours := verdict{OK: err == nil}
	if err != nil {
		ours.Text = reason(err)
	}
	theirs, perr := r.peer.conclude(ctx, ours)
	if perr != nil {
		return errors.Join(err, perr)
	}
	rep.Half.PeerProved, rep.Half.PeerSays = &theirs.OK, theirs.Text
	if !theirs.OK {
		err = errors.Join(err, fmt.Errorf("%w, says %s: %s", ErrProof, r.peer.host(), theirs.Text))
	}
	return err
}

// leave closes the connection to the other host, if there is one, and then our stack. Before that it sends err to the
// other host, unless err is nil or an ErrProof.
func (r *runner) leave(err error) error {
	if r.peer != nil {
		if errors.Is(err, ErrProof) {
			err = nil // conclude has sent it as our verdict
		}
		r.peer.close(err)
	}
	if r.host == nil {
		return nil
	}
	return r.host.Close()
}
