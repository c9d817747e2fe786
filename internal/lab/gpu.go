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

// GPUFilePrefix and a GPU's name is the name of its memory's file in /proc.
const GPUFilePrefix = "vnic-gpu"

// GPUMemory is a GPU of a lab. Closing it is the lab's.
type GPUMemory struct {
	*gpumem.GPU
	Name string   // as a.gpu0
	File *os.File // its memory, to be mapped or handed on to a QEMU
	Node bool     // its guest sees it as a NUMA node's memory; else as BAR 2 of an ivshmem device

	Place   string // its name in the machine's tree
	Hotplug bool   // its guest's QEMU can let go of it while it runs

	removed atomic.Bool // from its guest

	info control.GPUInfo // how its guest finds it, but for its place in the PCIe tree
}

// allocate makes the memory of all GPUs, which are numbered over the lab: at the same time, as the kernel clears each
// page; but one after the other, until there is no more, where there is not enough for all. The error is that of the
// first GPU that has none.
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
				return nil // there is no more
			}
			g, err := gpumem.NewGPU(l.files, id, spec.Memory, gpumem.Options{Name: GPUFilePrefix + spec.Name})
			l.memory[id], errs[id] = g, l.memoryError(spec.Memory, err)
			return errs[id]
		})
	}
	_ = eg.Wait() // which returns the first error by time
	return cmp.Or(errs...)
}

// newGPU makes a GPU whose guest finds it as model says; node is its number if it is a NUMA node. Its memory is there.
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

// free lets go of all GPUs' memory, at the same time: the kernel takes page by page.
func (l *Lab) free() error {
	var errs []error
	for _, m := range l.machines {
		for _, g := range m.GPUs {
			errs = append(errs, g.File.Close()) // not the memory's last descriptor
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

// memoryError makes of a lack of memory an error that says what to do.
func (l *Lab) memoryError(size uint64, err error) error {
	for _, e := range []error{unix.ENOSPC, unix.ENOMEM, unix.EFBIG, unix.EDQUOT} {
		if errors.Is(err, e) {
			n := 0
			for _, g := range l.desc.Guests {
				n += len(g.GPUs)
			}
			return &MemoryError{Size: size, GPUs: n, Err: err}
		}
	}
	return err
}
