package lab

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/control"
	"vnic.dev/vnic/gpumem"
)

// GPUFilePrefix and a GPU's name is the name of its memory's file in /proc.
const GPUFilePrefix = "vnic-gpu"

// GPUMemory is a GPU of a lab. Closing it is the lab's.
type GPUMemory struct {
	*gpumem.GPU
	File *os.File // its memory, to be mapped or handed on to a QEMU
	Node bool     // its guest sees it as a NUMA node's memory; else as BAR 2 of an ivshmem device

	info control.GPUInfo // how its guest finds it, but for its place in the PCIe tree
}

// newGPU makes a GPU whose guest finds it as model says; node is its number if it is a NUMA node.
// GPUs are numbered over the lab.
func (l *Lab) newGPU(spec GPU, model Model, node int) (*GPUMemory, error) {
	id := 0
	for _, m := range l.machines {
		id += len(m.GPUs)
	}
	g, err := gpumem.NewGPU(l.files, id, spec.Memory, gpumem.Options{Name: GPUFilePrefix + spec.Name})
	if err != nil {
		return nil, l.memoryError(spec.Memory, err)
	}
	fd, err := unix.FcntlInt(uintptr(g.FD()), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, errors.Join(os.NewSyscallError("fcntl", err), g.Close())
	}
	return &GPUMemory{GPU: g, File: os.NewFile(uintptr(fd), "gpu"), Node: model.Node, info: model.gpuInfo(node)}, nil
}

func (g *GPUMemory) close() error { return errors.Join(g.GPU.Close(), g.File.Close()) }

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
