package lab

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/control"
	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/gpumem"
	"vnic.dev/vnic/nic"
	"vnic.dev/vnic/qemu"
	"vnic.dev/vnic/wire"
)

// Lab is some NICs on a switch. Its methods may be called from any goroutine, Close once.
type Lab struct {
	opt      Options
	kind     Personality
	files    *dma.Files
	sw       *wire.Switch
	ports    []*Port
	services []io.Closer
}

// New makes a world. An error that is a *qemu.Missing says what the machine lacks.
func New(o Options) (w *Lab, err error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	kind, _ := Of(o.NIC)
	o.MTU = cmp.Or(o.MTU, defaultMTU)
	o.QueuePairs = cmp.Or(o.QueuePairs, kind.QueuePairs)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	w = &Lab{opt: o, kind: kind, files: dma.NewFiles(), sw: wire.NewSwitch(o.Log)}
	defer func() {
		if err != nil {
			w, err = nil, errors.Join(err, w.Close())
		}
	}()
	tree := gpumem.NewTopology()
	if err := tree.AddRoot("rc0", false); err != nil {
		return w, err
	}
	tree.SetOff(o.NoP2P)
	for i := range o.Ports {
		p, err := w.newPort(i, tree)
		if p != nil {
			w.ports = append(w.ports, p)
		}
		if err != nil {
			return w, err
		}
	}
	for _, f := range o.Services {
		s, err := f(w)
		if err != nil {
			return w, err
		}
		w.services = append(w.services, s)
	}
	return w, nil
}

// newPort makes a port. The caller closes it even when there is an error, unless it is nil.
func (w *Lab) newPort(i int, tree *gpumem.Topology) (*Port, error) {
	o := w.opt.Ports[i]
	p := &Port{w: w, Index: i, Name: cmp.Or(o.Name, fmt.Sprint(PortName, i)), MAC: cmp.Or(o.MAC, MAC(i)), Addr4: cmp.Or(o.Addr4, Addr4(i)),
		Addr6: cmp.Or(o.Addr6, Addr6(i))}
	p.begin()
	c := nic.Config{Name: p.Name, MAC: p.MAC, MTU: uint16(w.opt.MTU), QueuePairs: w.opt.QueuePairs, Log: w.opt.Log}
	if w.opt.GPUMemory != 0 && !o.NoGPU {
		g, err := p.addGPU(tree)
		if err != nil {
			return p, err
		}
		c.GPUs = []nic.GPU{g}
	}
	var err error
	if p.dev, err = newDevice(w.opt.NIC, w.files, c); err != nil {
		return p, err
	}
	return p, p.NIC().Attach(w.sw, o.Link)
}

// addGPU makes the port's GPU, below the same PCIe switch as its NIC.
func (p *Port) addGPU(tree *gpumem.Topology) (g nic.GPU, err error) {
	name := "gpu" + p.Name
	sw, n := "sw"+p.Name, "nic"+p.Name
	if err := errors.Join(tree.AddSwitch(sw, "rc0", false), tree.AddDevice(n, sw), tree.AddDevice(name, sw)); err != nil {
		return g, err
	}
	if g.Path, err = tree.Path(n, name); err != nil {
		return g, err
	}
	g.Info = control.GPUInfo{Place: tree.Place(name)}
	if p.gpu, err = gpumem.NewGPU(p.w.files, p.w.gpuID(), p.w.opt.GPUMemory, gpumem.Options{Name: GPUFilePrefix + p.Name}); err != nil {
		return g, p.w.noRoom(err)
	}
	g.GPU = p.gpu
	return g, p.openGPU()
}

// gpuID is the number of the next GPU.
func (w *Lab) gpuID() (n int) {
	for _, p := range w.ports {
		if p.gpu != nil {
			n++
		}
	}
	return n
}

// noRoom makes of a lack of memory something that the machine lacks.
func (w *Lab) noRoom(err error) error {
	for _, e := range []error{unix.ENOSPC, unix.ENOMEM, unix.EFBIG, unix.EDQUOT} {
		if errors.Is(err, e) {
			fix := "free some, or name less"
			if n := w.opt.gpus(); n > 1 {
				fix = fmt.Sprintf("each of %d GPUs takes that much: %s", n, fix)
			}
			return &qemu.Missing{What: "--gpu-memory " + FormatBytes(w.opt.GPUMemory), Err: err, Fix: fix}
		}
	}
	return err
}

// Ports gives all ports, in the order of Options.
func (w *Lab) Ports() []*Port { return slices.Clone(w.ports) }

// Port gives port i.
func (w *Lab) Port(i int) *Port { return w.ports[i] }

// Switch is what the ports are on.
func (w *Lab) Switch() *wire.Switch { return w.sw }

// Personality is that of all NICs.
func (w *Lab) Personality() Personality { return w.kind }

// MTU is that of all NICs.
func (w *Lab) MTU() int { return w.opt.MTU }

// QueuePairs is how many each NIC has.
func (w *Lab) QueuePairs() int { return w.opt.QueuePairs }

// Close ends what is served, then takes down services, NICs, GPUs and the switch. Nothing of the world is left.
func (w *Lab) Close() error {
	var wg sync.WaitGroup
	for _, p := range w.ports {
		wg.Go(p.endServing)
	}
	wg.Wait()
	var errs []error
	for _, s := range slices.Backward(w.services) {
		errs = append(errs, s.Close())
	}
	for _, p := range w.ports {
		wg.Go(func() {
			if p.dev != nil {
				p.dev.Close()
			}
		})
	}
	wg.Wait()
	for _, p := range w.ports { // no NIC is left that reads another's GPU
		errs = append(errs, p.closeGPU())
	}
	w.ports, w.services = nil, nil
	return errors.Join(append(errs, w.sw.Close())...)
}
