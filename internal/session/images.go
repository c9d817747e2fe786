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

// Images finds or fetches QEMU and a kernel, and builds the initramfs, for guests with NICs of these models: with the
// modules that vnic's programs need for them, the kernel's drivers for them if interfaces is true, and the modules in
// more. The caller closes the result.
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

// Usable returns how many bytes a guest can use of a GPU with this many bytes of memory. If the GPU is a NUMA node,
// these are whole huge pages, without a reserve for the page structures of the guest's kernel, which took 8 MiB of 128
// in a measurement.
func Usable(m lab.Model, memory uint64) uint64 {
	if !m.Node {
		return memory
	}
	return (memory - min(memory, max(memory/nodeShare, nodeLeast))) &^ (HugePage - 1)
}

// room returns how many bytes a guest can allocate, as one range, of a GPU with this many bytes of memory. For a node
// that is nodeMargin less than Usable, at least 0: once only 222 of 224 usable MiB were free.
func room(m lab.Model, memory uint64) uint64 {
	has := Usable(m, memory)
	if !m.Node {
		return has
	}
	return has - min(has, nodeMargin)
}

const (
	nodeMargin = 16 << 20

	nodeShare = 8        // 1/nodeShare of the memory is not usable; 1/16 was too little in one of five runs
	nodeLeast = 24 << 20 // least that is not usable; 16 MiB for 128 MiB once was a page too little on Linux 7.3.4

	// HugePage is the size of the pages in which a guest allocates a node's memory.
	HugePage = 2 << 20
)
