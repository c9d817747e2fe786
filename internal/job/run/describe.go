package run

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/dustin/go-humanize/english"

	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/lab/labfile"
	"vnic.dev/vnic/internal/machine"
	"vnic.dev/vnic/internal/session"
)

// MaxRails is the largest number of rails. Rail i is NIC i of one guest and NIC i of the other.
const MaxRails = 32

func (o *Options) rails() int { return max(1, o.Rails) }

func (o *Options) describe() (d lab.Description, err error) {
	if o.Lab == nil {
		d, err = o.bare()
	} else {
		d, err = o.fromFile()
	}
	if err != nil {
		return d, err
	}
	d.NoP2P = d.NoP2P || !o.P2P
	return d, o.sabotage(&d)
}

// fromFile returns the lab file's description, which must have two guests, each with at least Rails NICs.
func (o *Options) fromFile() (lab.Description, error) {
	d := o.Lab.Complete()
	if len(d.Guests) != 2 {
		return d, fmt.Errorf("--lab: %d guests: vnic run has two, from the first to the second", len(d.Guests))
	}
	for _, g := range d.Guests {
		if len(g.NICs) < o.Rails {
			return d, fmt.Errorf("--rails %d: guest %s of the lab file has %s", o.Rails, g.Name,
				english.Plural(len(g.NICs), "NIC", ""))
		}
	}
	return d, nil
}

func (o *Options) bare() (d lab.Description, err error) {
	models, err := o.models()
	if err != nil {
		return d, err
	}
	for i, name := range [2]string{"a", "b"} {
		g := lab.Guest{Name: name, Driver: o.GPUDriver, IOMMU: o.IOMMU}
		for rail := range o.rails() {
			n := lab.NIC{Name: fmt.Sprintf("%s.nic%d", name, rail), Model: models[i].Name, NICOptions: o.NICOptions,
				QueuePairs: o.queuePairs(models[i]), GPUs: []int{rail}}
			n.Addr4, n.Addr6 = labfile.Addrs(rail, i)
			g.NICs = append(g.NICs, n)
			g.GPUs = append(g.GPUs, lab.GPU{Name: fmt.Sprintf("%s.gpu%d", name, rail), Memory: o.GPUMemory})
		}
		if o.Rails == 0 { // guests A and B: their only NICs need no other name
			g.Name = [2]string{"A", "B"}[i]
			g.NICs[0].Name, g.GPUs[0].Name = g.Name, ""
			g.NICs[0].Addr4, g.NICs[0].Addr6 = netip.Prefix{}, netip.Prefix{}
		}
		d.Guests = append(d.Guests, g)
	}
	d.Impair(o.Impairment)
	return d, nil
}

// guestModels lists the models of the transferring NICs on this host.
func (o *Options) guestModels(d *lab.Description) (list []string) {
	for i := range d.Guests {
		if !o.away(i) {
			list = append(list, o.modelsOf(&d.Guests[i])...)
		}
	}
	return list
}

// checkLab returns an error if the lab is invalid or the transfers do not fit it.
func (o *Options) checkLab() error {
	switch {
	case o.Rails < 0 || o.Rails > MaxRails:
		return fmt.Errorf("--rails %d: 1 to %d", o.Rails, MaxRails)
	case o.Rails == 0 && o.Bidir:
		return errors.New("--bidir is of rails: --rails 1 --bidir")
	case o.Size == 0:
		return errors.New("--size 0: nothing to transfer")
	case !o.InProc && o.Lab == nil && o.Rails > maxBare:
		return fmt.Errorf("--rails %d: QEMU has room for %d NICs with GPUs, or more in a lab file with sockets", o.Rails,
			maxBare)
	}
	d, err := o.describe()
	if err == nil {
		err = d.Check()
	}
	if err != nil {
		return err
	}
	d = d.Complete()
	for i, g := range d.Guests {
		for _, n := range g.NICs[:o.rails()] {
			switch {
			case o.InProc && n.Model != NICVirtio && !o.away(i):
				return fmt.Errorf("--rails: %s is of model %s, and guests in this process have virtio only", n.Name, n.Model)
			case n.GPUs != nil && len(n.GPUs) == 0 || len(g.GPUs) == 0:
				return fmt.Errorf("--rails: %s reaches no GPU", n.Name)
			}
			if pairs := session.UsedPairs(n.Model, n.QueuePairs); pairs <= o.BindQueues {
				return fmt.Errorf("--bind-queues %d: guests use %d pairs of queues of NIC %s, of model %s, and ordinary traffic "+
					"wants one: %d at most", o.BindQueues, pairs, n.Name, n.Model, pairs-1)
			}
		}
		if err := o.checkRAM(i, &g); err != nil {
			return err
		}
	}
	if err := o.checkSubnets(&d); err != nil {
		return err
	}
	_, err = planned(o)
	return err
}

// checkSubnets returns an error unless the ends of each rail are in one subnet of family Options.Family.
func (o *Options) checkSubnets(d *lab.Description) error {
	for rail := range o.rails() {
		a, b := &d.Guests[0].NICs[rail], &d.Guests[1].NICs[rail]
		if from, to := o.addr(a), o.addr(b); from.Masked() != to.Masked() {
			return fmt.Errorf("--lab: %s has %v, and %s %v: the ends of a rail are in one subnet: name others, or leave them out",
				a.Name, from, b.Name, to)
		}
	}
	return nil
}

// addr returns the NIC's address of family Options.Family.
func (o *Options) addr(n *lab.NIC) netip.Prefix {
	if o.Family == 6 {
		return n.Addr6
	}
	return n.Addr4
}

func (o *Options) modelsOf(g *lab.Guest) (list []string) {
	for _, n := range g.NICs[:o.rails()] {
		list = append(list, n.Model)
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// checkRAM returns an error if guest i, in QEMU on this host, has too little RAM for its NICs' huge pages. If
// a GPU is a NUMA node, the guest's programs use the RAM of the first socket, and the sockets have equal
// parts.
func (o *Options) checkRAM(i int, g *lab.Guest) error {
	if o.InProc || o.away(i) {
		return nil
	}
	ram, _ := o.machine(i)
	pages, most, node := 0, 0, false // lab.MinRAM includes one NIC's huge pages
	for i := range g.NICs {
		model := g.ModelOf(&g.NICs[i])
		one := machine.SoftwareFor(model.Name).HugePages
		pages, most, node = pages+one, max(most, one), node || model.Node
	}
	least := lab.MinRAM + uint64(pages-most)*session.HugePage
	which := ""
	if n := len(g.Sockets); n > 1 && node {
		least *= uint64(n)
		which = fmt.Sprintf(", and uses that of the first of %d sockets", n)
	}
	if ram >= least {
		return nil
	}
	return fmt.Errorf("--rails: guest %s has %s of RAM for %d NICs%s: %s at least", g.Name, lab.FormatBytes(ram),
		len(g.NICs), which, lab.FormatBytes(least))
}

// maxBare is how many NICs, with as many GPUs, fit into a QEMU machine without a described PCIe tree.
const maxBare = 12

func (o *Options) machine(i int) (ram uint64, cpus int) {
	if o.Lab != nil {
		return o.Lab.Machines[i].RAM, o.Lab.Machines[i].CPUs
	}
	return o.Memory, 1
}

// Take makes the run use a lab file's guests, with n NICs of each; 0: as many as all have, MaxRails at most. It raises
// Loss and Reorder to the largest of the file's links.
func (o *Options) Take(l *labfile.Lab, n int) {
	o.Lab, o.Rails = l, n
	least := MaxRails
	for _, g := range l.Guests {
		least = min(least, len(g.NICs))
		for _, n := range g.NICs { // the largest of the links' Loss and Reorder, if larger
			o.Loss, o.Reorder = max(o.Loss, n.Link.Up.Loss), max(o.Reorder, n.Link.Up.Reorder)
		}
	}
	if n == 0 {
		o.Rails = least
	}
}

// nodeMemory is the least memory, in bytes, of a GPU that is a NUMA node after Remodel.
const nodeMemory = 128 << 20

// Remodel changes the models of a lab file's NICs to those in NIC: the first guest's to the first model, the others' to
// the second. A GPU that is then a NUMA node gets at least nodeMemory and loses Hotplug, and so do NICs without support
// for Hotplug. At last Remodel calls l.HotplugFor for the file's script.
func (o *Options) Remodel(l *labfile.Lab) error {
	models, err := o.models()
	for i := range l.Guests {
		g, m := &l.Guests[i], models[min(i, 1)]
		for j := range g.NICs {
			g.NICs[j].Model = m.Name
			g.NICs[j].Hotplug = g.NICs[j].Hotplug && !m.VFIOUser
		}
		for j := range g.GPUs {
			if m.With(g.Driver).Node {
				g.GPUs[j].Memory, g.GPUs[j].Hotplug = max(g.GPUs[j].Memory, nodeMemory), false
			}
		}
	}
	l.HotplugFor(l.Script)
	return err
}

// noteLinux notes pairs of NIC and GPU for which a guest's kernel will refuse peer-to-peer, or which it will judge
// otherwise than the lab's tree (lab.SeenByLinux), for guests on this host with the driver vnicgpu.
func (o *Options) noteLinux(d *lab.Description) {
	for i, g := range d.Guests {
		if g.Driver != lab.DriverVNICGPU || o.away(i) {
			continue
		}
		tree, _, _ := d.Tree(i)
		linux := lab.SeenByLinux(tree, g.Driver)
		for _, p := range append(d.Refused(i, linux.Path), d.Differences(i, linux.Path)...) {
			o.Tell("%s: %s: %s", g.Name, p.Some(), p.Text)
		}
	}
}
