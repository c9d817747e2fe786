package session

import (
	"context"
	"errors"
	"slices"
	"strings"

	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/machine"
	"vnic.dev/vnic/internal/machine/assets"
)

// Images finds or fetches QEMU and a kernel, and builds the initramfs, for guests with NICs of these models: with
// the kernel's drivers for them if interfaces is true, and with the modules in more. The caller closes the result.
func Images(ctx context.Context, o assets.Options, models []string, interfaces bool,
	note func(format string, args ...any), more ...string) (*machine.Images, error) {
	im, err := machine.Fetch(ctx, o, models, note)
	if err != nil {
		return nil, err
	}
	if err := im.CheckKernel(models, true); err != nil {
		return nil, errors.Join(err, im.Close())
	}
	modules := slices.Clone(more)
	for _, m := range models {
		modules = append(modules, Modules(im, m, interfaces)...)
	}
	slices.Sort(modules)
	modules = slices.Compact(modules)
	if len(im.Untested) > 0 {
		note("untested: %s", strings.Join(im.Untested, "; "))
	}
	if err := im.Build(ctx, modules, "devmem"); err != nil {
		if machine.LacksModules(err) {
			err = &assets.Missing{What: "kernel " + im.Kernel.Version + " lacks what a guest needs", Err: err,
				Fix: "use a kernel with " + strings.Join(modules, ", ") +
					" as a module, with its modules by --modules, or none of --kernel"}
		}
		return nil, errors.Join(err, im.Close())
	}
	return im, nil
}

// Modules lists the kernel modules that a guest loads for NICs of a model; interfaces is as in Images.
func Modules(im *machine.Images, model string, interfaces bool) []string {
	modules := slices.Clone(machine.SoftwareFor(model).Modules)
	if interfaces {
		modules = append(modules, im.Drivers(model)...)
	}
	return modules
}

// Usable returns how much of a GPU's memory a guest can use. If the GPU is a NUMA node, the guest's kernel
// needs a part of it for page structures: 8 MiB of 128 in a measurement.
func Usable(m lab.Model, memory uint64) uint64 {
	if !m.Node {
		return memory
	}
	return (memory - min(memory, max(memory/nodeShare, nodeLeast))) &^ (HugePage - 1)
}

// room returns how much of a GPU's memory a guest can allocate for one window. For a node it is less than
// Usable: once only 222 of 224 usable MiB were free.
func room(m lab.Model, memory uint64) uint64 {
	has := Usable(m, memory)
	if !m.Node {
		return has
	}
	return has - min(has, nodeMargin)
}

const (
	nodeMargin = 16 << 20

	nodeShare = 8        // a 16th was too little in one of five runs
	nodeLeast = 24 << 20 // with 16 MiB, a GPU of 128 MiB once had a page too few on Linux 7.3.4

	// HugePage is the size of the pages in which a guest takes a node's memory.
	HugePage = 2 << 20
)
