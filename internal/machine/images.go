package machine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	guestimages "vnic.dev/vnic/guest-images"
	"vnic.dev/vnic/internal/agent"
	"vnic.dev/vnic/internal/kernelnic"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/machine/assets"
	"vnic.dev/vnic/internal/machine/assets/gpumodule"
	"vnic.dev/vnic/internal/machine/qemu"
	"vnic.dev/vnic/internal/transfer"
)

// Software is what a guest needs for a NIC of a model.
type Software struct {
	Modules    []string // that devmem programs need
	HugePages  int      // 2 MiB pages for a NIC; on node 0 if lab.Model.Node
	KernelArgs string   // for the kernel's command line
	Driver     string   // module of the NIC's interface
}

var software = map[string]Software{
	lab.Virtio: {Modules: transfer.Modules, HugePages: transfer.HugePages, Driver: "virtio_net"},
	lab.GVE: {Modules: kernelnic.Modules, HugePages: kernelnic.HugePages, KernelArgs: kernelnic.KernelArgs,
		Driver: "gve"},
}

// SoftwareFor returns the software for a model.
func SoftwareFor(model string) Software { return software[model] }

// DriverModules returns the modules of the guests' GPU drivers.
func DriverModules(guests []lab.Guest) []string {
	if slices.ContainsFunc(guests, func(g lab.Guest) bool { return g.Driver == lab.DriverVNICGPU }) {
		return []string{guestimages.GPUModule}
	}
	return nil
}

// Images are the files from which guests boot.
type Images struct {
	*assets.Resolved
	Modules []string // of the initramfs, without dependencies

	initrd *guestimages.Image
	from   assets.Options // for fetching more
	note   func(format string, args ...any)
}

// Fetch finds or fetches QEMU and a kernel for NICs of these models. Fetch, and later BuildImage, call note with
// messages for the user. The caller closes the Images.
func Fetch(ctx context.Context, o assets.Options, models []string, note func(format string, args ...any)) (*Images,
	error) {
	for _, name := range models {
		m, _ := lab.LookupModel(name)
		o.VFIOUser = o.VFIOUser || m.VFIOUser
	}
	res, err := assets.Fetch(ctx, o)
	if err != nil {
		return nil, err
	}
	for _, n := range res.Notes {
		note("%s", n)
	}
	return &Images{Resolved: res, from: o, note: note}, nil
}

// CheckKernel returns an error if a user's kernel does not fit NICs of these models: with devmem, for
// device memory TCP, else as ordinary NICs.
func (im *Images) CheckKernel(models []string, devmem bool) error {
	if im.Kernel.Source != assets.SourceGiven {
		return nil
	}
	for _, m := range models {
		fit := qemu.FitOf(im.Kernel, m)
		if err := fit.Err(devmem); err != nil {
			return &assets.Missing{What: "kernel " + im.Kernel.Version, Err: err, Fix: qemu.FixKernel(err)}
		}
	}
	return nil
}

// Build makes the initramfs with these modules and applets.
func (im *Images) Build(ctx context.Context, modules []string, applets ...string) error {
	return im.BuildImage(ctx, guestimages.Options{Modules: modules, Applets: applets})
}

// BuildImage makes the initramfs, with the Images' cache and kernel in place of o's. It builds vnicgpu.ko, or finds
// it in the cache, if that is among the modules and EnvGPUModule names no file. It fetches the whole kernel if an
// imported one lacks a module (offline: an error).
func (im *Images) BuildImage(ctx context.Context, o guestimages.Options) error {
	o.CacheDir, o.Kernel, o.ModulesDir = im.Cache, im.Kernel.Version, im.Kernel.Modules
	if slices.Contains(o.Modules, guestimages.GPUModule) && os.Getenv(guestimages.EnvGPUModule) == "" {
		var err error
		if o.GPUModule, err = gpumodule.Make(ctx, gpumodule.Options{Options: im.from, Kernel: im.Kernel,
			Source: guestimages.GPUModuleSource(), Note: im.note}); err != nil {
			return err
		}
	}
	img, err := guestimages.Build(ctx, o)
	if im.Kernel.Partial != "" && errors.Is(err, guestimages.ErrNoModule) {
		if err = im.complete(ctx, err); err == nil {
			o.Kernel, o.ModulesDir = im.Kernel.Version, im.Kernel.Modules
			img, err = guestimages.Build(ctx, o)
		}
	}
	if errors.Is(err, guestimages.ErrGPUModule) {
		return &assets.Missing{What: "kernel " + im.Kernel.Version, Err: err, Fix: "name one that is for this kernel by $" +
			guestimages.EnvGPUModule + ", or leave out --gpu-driver vnicgpu"}
	}
	if err != nil {
		return assets.CacheError(im.Cache, err)
	}
	im.initrd, im.Modules = img, o.Modules
	return nil
}

// busDriver is needed by virtio_net, but is not among its dependencies.
const busDriver = "virtio_pci"

// Drivers returns the modules of the kernel's drivers for a model's NICs.
func (im *Images) Drivers(model string) []string {
	drivers := []string{SoftwareFor(model).Driver}
	if model == lab.Virtio && guestimages.HasModule(im.Kernel.Modules, busDriver) {
		drivers = []string{busDriver, drivers[0]}
	}
	return drivers
}

// Size returns the initramfs's size in bytes.
func (im *Images) Size() int64 { return im.initrd.Size }

// Initrd returns a reader of the initramfs with the agent's configuration. The caller closes the reader.
func (im *Images) Initrd(c agent.Config) (io.ReadCloser, error) { return im.initrd.Initrd(c) }

// Close releases files of the cache; im may be nil.
func (im *Images) Close() error {
	if im == nil {
		return nil
	}
	return im.Resolved.Close()
}

// LacksModules reports whether an error of Build is about missing or wrong modules of the kernel, except vnicgpu. With
// assets.Options.Offline, modules that were not imported do not count either (assets.ErrPartial).
func LacksModules(err error) bool {
	return !errors.Is(err, guestimages.ErrGPUModule) && (errors.Is(err, guestimages.ErrNoModule) ||
		errors.Is(err, guestimages.ErrOtherKernel) || errors.Is(err, guestimages.ErrBadModule))
}

// BlameKernel adds fix to an error of the guest's agent if the kernel is the user's, whose driver may be too
// old.
func (im *Images) BlameKernel(err error, fix string) error {
	if remote := (*agent.RemoteError)(nil); errors.As(err, &remote) && im.Kernel.Source == assets.SourceGiven {
		return &assets.Missing{What: "kernel " + im.Kernel.Version, Err: err, Fix: fix}
	}
	return err
}

// complete fetches the whole kernel after err, which is about a module that the imported kernel lacks. Offline it
// returns an error.
func (im *Images) complete(ctx context.Context, err error) error {
	o := im.from
	if o.Offline {
		return assets.Partial("kernel "+im.Kernel.Version+": "+err.Error(), im.Kernel.Partial)
	}
	o.Whole = true
	res, ferr := assets.Fetch(ctx, o)
	if ferr != nil {
		return fmt.Errorf("kernel %s, which was imported for %s: %w: the whole one is wanted: %w", im.Kernel.Version,
			im.Kernel.Partial, err, ferr)
	}
	old := im.Resolved
	im.Resolved = res
	return old.Close()
}
