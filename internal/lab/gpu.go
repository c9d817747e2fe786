package lab

import (
	"cmp"
	"context"
	"errors"
	"math"
	"os"
	"runtime"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"vnic.dev/vnic/gpumem"
	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/memavail"
)

// GPUFilePrefix followed by the GPU's name is the name of its memory file.
const GPUFilePrefix = "vnic-gpu"

// GPUMemory is a GPU of a lab. Lab.Close closes its memory.
type GPUMemory struct {
	*gpumem.GPU
	Name string   // the description's name, as a.gpu0
	File *os.File // a duplicate of the descriptor of its memory; Lab.Close closes it
	Node bool     // the guest sees the memory as a NUMA node

	Place   string // its name in Machine.Tree
	Hotplug bool   // the guest's QEMU can remove it

	removed atomic.Bool // it was removed, or its removal is in progress

	info control.GPUInfo // without its place in the PCIe tree
}

// allocate makes the memory of all GPUs: for as many GPUs at a time as there are CPUs, or for one at a time if the
// machine lacks memory for all. It returns the error of the failed GPU with the lowest number.
func (l *Lab) allocate() error {
	var specs []GPU
	total := uint64(0)
	for _, g := range l.desc.Guests {
		specs = append(specs, g.GPUs...)
		for _, spec := range g.GPUs {
			total += min(spec.Memory, math.MaxUint64-total)
		}
	}
	l.memory = make([]*gpumem.GPU, len(specs))
	atOnce := runtime.NumCPU()
	if memavail.Enough(total, "/") != nil {
		atOnce = 1
	}
	errs := make([]error, len(specs))
	eg, ctx := errgroup.WithContext(context.Background())
	eg.SetLimit(atOnce)
	for id, spec := range specs {
		eg.Go(func() error {
			if atOnce == 1 && ctx.Err() != nil {
				return nil
			}
			g, err := gpumem.NewGPU(l.files, id, spec.Memory, gpumem.Options{Name: GPUFilePrefix + spec.Name})
			l.memory[id], errs[id] = g, l.memoryError(spec.Memory, err)
			return errs[id]
		})
	}
	_ = eg.Wait() // the errors are in errs
	return cmp.Or(errs...)
}

// newGPU makes the lab's next GPU, with the memory that allocate has made for it. The guest sees the GPU as a PCI
// device, or, if model.Node is set, as a NUMA node, whose number is in the parameter node.
func (l *Lab) newGPU(model Model, node int) (*GPUMemory, error) {
	id := 0
	for _, m := range l.machines {
		id += len(m.GPUs)
	}
	g := l.memory[id]
	fd, err := unix.FcntlInt(uintptr(g.FD()), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	return &GPUMemory{GPU: g, File: os.NewFile(uintptr(fd), "gpu"), Node: model.Node, info: model.gpuInfo(node)}, nil
}

// free closes the memory of all GPUs.
func (l *Lab) free() error {
	var errs []error
	for _, m := range l.machines {
		for _, g := range m.GPUs {
			errs = append(errs, g.File.Close())
		}
	}
	var eg errgroup.Group
	for _, g := range l.memory {
		if g != nil {
			eg.Go(g.Close)
		}
	}
	return errors.Join(append(errs, eg.Wait())...)
}

// memoryError converts an error for lack of memory to a *MemoryError, and returns another error unchanged.
func (l *Lab) memoryError(size uint64, err error) error {
	for _, e := range []error{unix.ENOSPC, unix.ENOMEM, unix.EFBIG, unix.EDQUOT} {
		if errors.Is(err, e) {
			return &MemoryError{Size: size, GPUs: len(l.memory), Err: err}
		}
	}
	return err
}
