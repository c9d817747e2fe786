package guests

import (
	"context"
	"errors"
	"slices"
	"strings"

	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/machine"
	"vnic.dev/vnic/internal/machine/assets"
)

// Images finds or fetches what guests with NICs of these models boot from. interfaces says that the guests' kernel is
// to have the NICs first, to say which one is which. more are modules that some guests need besides. Without an error
// the caller closes the Images; after one there are none.
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

// Modules lists what a guest loads for NICs of a model; interfaces is as in Images.
func Modules(im *machine.Images, model string, interfaces bool) []string {
	modules := slices.Clone(machine.SoftwareFor(model).Modules)
	if interfaces {
		modules = append(modules, im.Drivers(model)...)
	}
	return modules
}

// Usable is how much of a GPU's memory a guest can use. Of a node's, its kernel takes what it needs to
// know the rest: measured, 8 MiB of 128.
func Usable(m lab.Model, memory uint64) uint64 {
	if !m.Node {
		return memory
	}
	return (memory - min(memory, max(memory/nodeShare, nodeLeast))) &^ (HugePage - 1)
}

// room is how much of it a guest can take for certain as one window: of 224 MiB that were usable, 222 were free once.
func room(m lab.Model, memory uint64) uint64 {
	has := Usable(m, memory)
	if !m.Node {
		return has
	}
	return has - min(has, nodeMargin)
}

const (
	nodeMargin = 16 << 20

	nodeShare = 8        // a 16th was too little once in five runs: how much the kernel keeps there varies
	nodeLeast = 24 << 20 // of 128 MiB on 7.3.4 once a page short with 16

	// HugePage is what a guest takes of a node: whole ones.
	HugePage = 2 << 20
)
