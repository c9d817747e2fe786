package lab

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/gpumem"
	"vnic.dev/vnic/internal/lab/pcie"
	"vnic.dev/vnic/internal/lab/shape"
	"vnic.dev/vnic/internal/nic"
	"vnic.dev/vnic/internal/wire"
)

// Lab is the NICs and GPUs of guests, and the switch that connects the NICs. Its methods may be called
// concurrently, but Close only once, after the other calls.
type Lab struct {
	desc     Description // with defaults (Complete)
	opt      Options
	files    *dma.Files
	sw       *wire.Switch
	pollers  *nic.Pollers
	machines []*Machine
	memory   []*gpumem.GPU
	ports    []*Port
	clock    *shape.Clock

	changing sync.Mutex      // held during changes of the running lab
	removals []chan struct{} // under changing; one for each removal, closed when the removal has ended
	closing  chan struct{}

	applied atomic.Pointer[func(Change)]

	edgeMu   sync.Mutex
	edges    map[string]*Edge // under edgeMu
	services []io.Closer
}

// Machine is the hardware of a guest.
type Machine struct {
	Name  string
	Tree  *pcie.Tree // Port.Place and GPUMemory.Place are names in it
	Bare  bool       // the tree is the default of a guest without sockets, and QEMU does not show it
	Ports []*Port
	GPUs  []*GPUMemory
	// Driver is DriverNode or DriverVNICGPU.
	Driver string
	IOMMU  bool // the guest has an IOMMU

	lab    *Lab
	desc   *Guest
	faults GuestFaults // under lab.changing
}

// Open makes a lab. If there is not enough memory for a GPU, errors.As finds a *MemoryError.
func Open(d Description, o Options) (l *Lab, err error) {
	if err := d.Check(); err != nil {
		return nil, err
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	l = &Lab{desc: d.Complete(), opt: o, files: dma.NewFiles(), sw: wire.NewSwitch(o.Log),
		edges: make(map[string]*Edge), closing: make(chan struct{})}
	defer func() {
		if err != nil {
			l, err = nil, errors.Join(err, l.Close())
		}
	}()
	l.clock = shape.NewClock(l.desc.Scale)
	if o.Poll > 0 {
		if l.pollers, err = nic.NewPollers(o.Poll, o.Hot); err != nil {
			return l, err
		}
	}
	if err := l.allocate(); err != nil {
		return l, err
	}
	for i := range l.desc.Guests {
		if err := l.addMachine(&l.desc.Guests[i]); err != nil {
			return l, err
		}
	}
	for _, f := range o.Services {
		s, err := f(l)
		if err != nil {
			return l, err
		}
		l.services = append(l.services, s)
	}
	return l, nil
}

// addMachine makes a guest's GPUs and NICs; after an error, Lab.Close closes the GPUs and NICs made so far.
func (l *Lab) addMachine(g *Guest) error {
	tree, err := g.tree()
	if err != nil {
		return err
	}
	m := &Machine{Name: g.Name, Tree: tree, Bare: len(g.Sockets) == 0 && g.Driver != DriverVNICGPU,
		Driver: cmp.Or(g.Driver, DriverNode), IOMMU: g.IOMMU, desc: g, lab: l}
	l.machines = append(l.machines, m)
	nodes := max(len(g.Sockets), 1) - 1 // number of the last NUMA node that is a socket; GPUs that are nodes follow
	for i := range g.GPUs {
		model := g.ModelOf(&g.NICs[g.owner(i)])
		if model.Node {
			nodes++
		}
		gpu, err := l.newGPU(model, nodes)
		if err != nil {
			return err
		}
		gpu.Name, gpu.Place = g.GPUs[i].Name, g.gpuInTree(&g.GPUs[i])
		gpu.Hotplug = !gpu.Node && g.letsGo(g.GPUs[i].Slot, g.GPUs[i].Hotplug)
		m.GPUs = append(m.GPUs, gpu)
	}
	for i := range g.NICs {
		n := &g.NICs[i]
		path := g.nicInTree(n)
		var reached []*GPUMemory
		for j, gpu := range m.GPUs {
			if n.Reaches(j) {
				reached = append(reached, gpu)
			}
		}
		slices.SortStableFunc(reached, func(a, b *GPUMemory) int {
			return cmp.Compare(tree.Path(path, a.Place).Distance, tree.Path(path, b.Place).Distance)
		})
		var gpus []nic.GPU
		for _, gpu := range reached {
			path := tree.Path(path, gpu.Place)
			if l.desc.NoP2P {
				path = path.Off()
			}
			info := gpu.info
			info.Place = tree.Place(gpu.Place)
			gpus = append(gpus, nic.GPU{GPU: gpu.GPU, Info: info, Path: path})
		}
		place := ""
		if g.inside(n) {
			place = path
		}
		p, err := l.newPort(n, gpus, reached, m, place)
		if p != nil {
			p.Hotplug = !p.Model.VFIOUser && g.letsGo(n.Slot, n.Hotplug)
			l.ports, m.Ports = append(l.ports, p), append(m.Ports, p)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Machines returns the hardware of the guests, in the order of the description.
func (l *Lab) Machines() []*Machine { return slices.Clone(l.machines) }

// Machine returns the hardware of guest i.
func (l *Lab) Machine(i int) *Machine { return l.machines[i] }

// Ports returns all ports, in the order of Port.Index: guest by guest.
func (l *Lab) Ports() []*Port { return slices.Clone(l.ports) }

// Port returns port i of the lab.
func (l *Lab) Port(i int) *Port { return l.ports[i] }

// Switch returns the switch of all ports.
func (l *Lab) Switch() *wire.Switch { return l.sw }

// MTU returns the least NICOptions.MTU of the NICs, in bytes.
func (l *Lab) MTU() int {
	return slices.MinFunc(l.ports, func(a, b *Port) int { return a.MTU - b.MTU }).MTU
}

// largestMTU returns the port with the largest MaxMTU.
func (l *Lab) largestMTU() *Port {
	return slices.MaxFunc(l.ports, func(a, b *Port) int { return a.MaxMTU - b.MaxMTU })
}

// Close ends all connections and closes the services, NICs, GPUs and the switch.
func (l *Lab) Close() error {
	close(l.closing)
	l.AwaitRemovals(context.Background())
	var wg sync.WaitGroup
	for _, p := range l.ports {
		wg.Go(p.endServing)
	}
	wg.Wait()
	var errs []error
	for _, s := range slices.Backward(l.services) {
		errs = append(errs, s.Close())
	}
	for _, p := range l.ports {
		wg.Go(func() {
			if p.dev != nil {
				p.dev.Close()
			}
		})
	}
	wg.Wait()
	if l.pollers != nil {
		l.pollers.Close()
	}
	for _, m := range l.machines {
		errs = append(errs, m.SetMemory(nil))
	}
	errs = append(errs, l.free()) // after all NICs, which may read GPUs of other ports
	l.ports, l.machines, l.services, l.memory = nil, nil, nil, nil
	return errors.Join(append(errs, l.sw.Close())...)
}
