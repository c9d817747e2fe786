package session

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"vnic.dev/vnic/internal/broker"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/lab/labfile"
	"vnic.dev/vnic/internal/machine/qemu"
	"vnic.dev/vnic/internal/memavail"
	"vnic.dev/vnic/internal/transfer"
	"vnic.dev/vnic/internal/wire/gateway"
)

// Options are the options of a Set.
type Options struct {
	Common
	lab.Impairment
	lab.NICOptions // of the Servers' NICs; without a Lab, of all NICs

	Guests    int          // 1 to MaxGuests; with a Lab: only its first ones, 0 for all
	NIC       []string     // models, by guest; further guests have the last one; a Lab decides that itself
	Lab       *labfile.Lab // nil: each of the Guests has one NIC and one GPU
	Family    int          // 4 or 6
	Hotplug   bool         // GPUs can be removed; a Lab decides that itself
	Driver    string       // of the GPUs, lab.DriverNode (also "") or lab.DriverVNICGPU; a Lab decides that itself
	Memory    uint64       // RAM of each of the Guests in QEMU, in bytes; a Lab decides that itself
	GPUMemory uint64       // of each GPU, in bytes; a Lab decides that itself
	P2P       P2P
	Window    uint64   // bytes of its GPU's memory that each guest but the Servers needs
	Windows   []uint64 // overrides Window for the first guests
	Bind      int      // number of receive queues that a guest may bind to GPU memory; 0: 1

	Modes    []string                              // transfer.Devmem and transfer.Copy; `vnic rdma` has none
	Progress func(mode string, done, total uint64) // with the progress in a mode, in the command's unit; may be nil

	Servers []Server          // run as further guests
	Gateway *lab.GatewayFlags // nil, or Off returns true: the lab has no gateway

	Hook func(*Set) // tests: OpenSet calls it before guests boot; nil: none
}

// Server describes a guest without a GPU, whose kernel drives its NIC. It runs in QEMU.
type Server struct {
	Name    string
	Model   string   // of its NIC
	Modules []string // besides the NIC's driver
	Disks   []qemu.Disk
}

const serverRAM = 384 << 20

// MaxGuests is the largest Options.Guests without a Lab.
const MaxGuests = 64

// Defaults returns Options with default values. Commands change some of them.
func Defaults() Options {
	return Options{Guests: 2, NIC: []string{lab.Virtio}, Modes: []string{transfer.Devmem},
		NICOptions: lab.NICOptions{MTU: 1500}, Family: 4, Memory: 512 << 20, GPUMemory: 256 << 20}
}

// BrokerConfig returns the configuration of the broker, the process outside of the sandbox, in this mode of the
// sandbox.
func (o *Options) BrokerConfig(mode string) (broker.Config, error) {
	c := broker.Config{Mode: mode, Monitor: qemu.Commands}
	if o.Gateway == nil {
		return c, nil
	}
	g, err := o.Gateway.Options(lab.GuestName, o.Guests, noPorts)
	c.NAT, c.Policy, c.Forwards = g.NAT, g.Policy, g.Forwards
	return c, err
}

// noPorts is the default of --host-ports for a Set: guests reach no ports of this machine.
const noPorts = "none"

func (o *Options) services() ([]lab.Service, error) {
	if o.Gateway == nil || o.Gateway.Off() {
		return nil, nil
	}
	g, err := o.Gateway.Options(lab.GuestName, o.Guests, noPorts)
	if err != nil {
		return nil, err
	}
	if o.Broker != nil {
		g.Outside = o.Broker
	}
	d, err := o.Describe()
	if err != nil {
		return nil, err
	}
	for _, x := range d.Complete().Guests {
		n := &x.NICs[0]
		g.Hosts = append(g.Hosts, gateway.Host{Name: x.Name, MAC: n.MAC, Addr4: n.Addr4.Addr(), Addr6: n.Addr6.Addr()})
	}
	return []lab.Service{lab.Gateway(g)}, nil
}

// GatewayAddr returns the gateway's address, IPv6 if o.Family is 6, else IPv4.
func (o *Options) GatewayAddr() netip.Addr {
	v4, v6 := lab.GatewayAddrs()
	if o.Family == 6 {
		return v6.Addr()
	}
	return v4.Addr()
}

// OnHost reports whether host is a loopback address, localhost, or a name that ends with .localhost.
func OnHost(host string) bool {
	a, err := netip.ParseAddr(host)
	return strings.EqualFold(host, "localhost") || strings.HasSuffix(strings.ToLower(host), ".localhost") ||
		err == nil && a.IsLoopback()
}

func (o *Options) gateways() []netip.Addr {
	if o.Gateway == nil || o.Gateway.Off() {
		return nil
	}
	return []netip.Addr{o.GatewayAddr()}
}

// Show calls Progress if it is set. The unit of done and total is the command's: bytes or, for rounds with a time
// limit of `vnic rdma`, nanoseconds.
func (o *Options) Show(mode string, done, total uint64) {
	if o.Progress != nil {
		o.Progress(mode, done, total)
	}
}

// LinkLoss returns transfer.LinkLoss if i.Lossy or l.MayLose (l may be nil), else transfer.NoLoss.
func LinkLoss(i *lab.Impairment, l *labfile.Lab) transfer.Loss {
	if i.Lossy() || l.MayLose() {
		return transfer.LinkLoss
	}
	return transfer.NoLoss
}

func (o *Options) window(i int) uint64 {
	if i < len(o.Windows) {
		return o.Windows[i]
	}
	return o.Window
}

func (o *Options) bind() int { return max(1, o.Bind) }

func (o *Options) model(i int) string { return o.NIC[min(i, len(o.NIC)-1)] }

// Describe returns the description of the guests (with a Lab, of its first ones, as Guests says), and of the Servers
// after them.
func (o *Options) Describe() (d lab.Description, err error) {
	if o.Lab != nil {
		d = o.Lab.Complete()
		if o.Guests > len(d.Guests) {
			return d, fmt.Errorf("--guests %d: the lab file has %d", o.Guests, len(d.Guests))
		}
		if o.Guests > 0 {
			d.Guests = d.Guests[:o.Guests]
		}
		for _, g := range d.Guests {
			if len(g.NICs) == 0 || len(g.GPUs) == 0 || first(&g) < 0 {
				return d, fmt.Errorf("--lab: guest %s: its first NIC has no GPU that it may address", g.Name)
			}
		}
		o.addServers(&d)
		return d, nil
	}
	for i := range o.Guests {
		name := fmt.Sprint(lab.GuestName, i)
		m, _ := lab.LookupModel(o.model(i))
		g := lab.Guest{Name: name, Driver: o.Driver, GPUs: []lab.GPU{{Name: name + ".gpu0", Memory: o.GPUMemory}},
			NICs: []lab.NIC{{Name: name + ".nic0", Model: o.model(i), NICOptions: o.NICOptions,
				QueuePairs: max(m.QueuePairs, o.bind()+1)}}}
		if o.Hotplug {
			g.Sockets = []lab.Socket{{Name: "s0"}}
			g.Switches = []lab.Switch{{Name: "sw0", Slot: lab.Slot{Below: "s0"}}}
			g.NICs[0].Slot, g.GPUs[0].Slot, g.GPUs[0].Hotplug = lab.Slot{Below: "sw0"}, lab.Slot{Below: "sw0"}, true
		}
		d.Guests = append(d.Guests, g)
	}
	o.addServers(&d)
	d.Impair(o.Impairment)
	return d, nil
}

// enough returns an error if this machine's memory does not suffice. With a Lab it checks nothing.
func (o *Options) enough() error {
	each := o.GPUMemory
	if !o.InProc {
		each += o.Memory
	}
	if o.Lab != nil {
		return nil
	}
	if err := memavail.Enough(uint64(o.Guests)*each+uint64(len(o.Servers))*serverRAM, "/"); err != nil {
		return fmt.Errorf("%d of guests, each with --memory %s and --gpu-memory %s: %w: fewer, or less of either", o.Guests,
			lab.FormatBytes(o.Memory), lab.FormatBytes(o.GPUMemory), err)
	}
	return nil
}

func (o *Options) addServers(d *lab.Description) {
	for _, s := range o.Servers {
		d.Guests = append(d.Guests, lab.Guest{Name: s.Name,
			NICs: []lab.NIC{{Name: s.Name + ".nic0", Model: s.Model, NICOptions: o.NICOptions}}})
	}
}

// Only checks the options. It returns the first guest's name, and how many bytes the guest can use in one window of
// the first GPU that its first NIC may address.
func (o *Options) Only() (name string, has uint64, err error) {
	if err := o.Check(); err != nil {
		return "", 0, err
	}
	d, err := o.Describe()
	if err != nil {
		return "", 0, err
	}
	g := &d.Guests[0]
	m := g.ModelOf(&g.NICs[0])
	return g.Name, room(m, g.GPUs[first(g)].Memory), nil
}

func first(g *lab.Guest) int {
	for i := range g.GPUs {
		if g.NICs[0].Reaches(i) {
			return i
		}
	}
	return -1
}

// Check returns an error that names what is wrong with the options.
func (o *Options) Check() error {
	if err := Number("--guests", o.Guests, 1, MaxGuests); err != nil && o.Lab == nil {
		return err
	}
	switch {
	case len(o.NIC) == 0:
		return errors.New("--nic: virtio or gve, or one for each guest with commas between")
	case o.Lab == nil && len(o.NIC) > o.Guests:
		return fmt.Errorf("--nic %s: %d models, and %d of guests", strings.Join(o.NIC, ","), len(o.NIC), o.Guests)
	}
	err := cmp.Or(Family(o.Family, o.MTU), new(lab.Guest).CheckMachine(o.Memory, 1), o.Common.Check())
	if err != nil {
		return err
	}
	d, err := o.Describe()
	if err != nil {
		return err
	}
	users := d.Guests[:len(d.Guests)-len(o.Servers)]
	for i := range users {
		if m, _ := lab.LookupModel(users[i].NICs[0].Model); m.VFIOUser && o.InProc {
			return errors.New("--nic gve: its guests' network stack is the kernel's, so there are none with --guest inproc")
		}
	}
	if err := d.Check(); err != nil {
		return err
	}
	if o.Gateway != nil {
		if _, err := o.Gateway.Options(lab.GuestName, len(users), noPorts); err != nil {
			return err
		}
	}
	if err := o.P2P.check(len(users)); err != nil {
		return err
	}
	for i := range users {
		g := &users[i]
		m := g.ModelOf(&g.NICs[0])
		pairs := UsedPairs(m.Name, cmp.Or(g.NICs[0].QueuePairs, m.QueuePairs))
		if pairs <= o.bind() {
			return fmt.Errorf("guest %s uses %d pairs of queues of its NIC, of which one is for ordinary traffic: %d can be "+
				"bound, and not %d", g.Name, pairs, pairs-1, o.bind())
		}
		if has, window := Usable(m, g.GPUs[first(g)].Memory), o.window(i); window > has {
			return fmt.Errorf("guest %s can use %s of its GPU's memory, and %s are wanted: a larger --gpu-memory, or less data",
				g.Name, lab.FormatBytes(has), lab.FormatBytes((window+1<<20-1)&^(1<<20-1)))
		}
	}
	return nil
}
