package gpumodule

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"

	"vnic.dev/vnic/internal/machine/assets"
)

// Look reports whether the module exists or, as far as is known without a build, can be built. It leaves no files, and
// uses no network. given is the path of the user's own module; "": none. canFetch means that packages can be fetched.
func Look(ctx context.Context, o Options, given string, canFetch bool) assets.Fact {
	fact := func(s assets.State, value, fix string) assets.Fact {
		return assets.NewFact("gpu driver", s, "vnicgpu.ko: "+value, fix)
	}
	var m *assets.Missing
	lacking := func(err error) assets.Fact {
		if errors.As(err, &m) {
			return fact(assets.Worse, m.What+": "+m.Err.Error(), m.Fix)
		}
		return fact(assets.Worse, err.Error(), "")
	}
	if given != "" {
		if _, err := os.Stat(given); err != nil {
			return fact(assets.Worse, err.Error(), "name another file by $VNIC_GPU_MODULE, or none")
		}
		return fact(assets.Good, "given: "+given, "")
	}
	work, err := os.MkdirTemp("", "vnic-doctor-")
	if err != nil {
		return lacking(err)
	}
	defer func() { _ = os.RemoveAll(work) }()
	c := findCompiler(ctx, work)
	by := "Debian's compiler"
	if c != nil {
		by = "this machine's " + c.name
	}
	if c == nil && !canFetch && !assets.HasBundle(o.Options, compilerBundle()) {
		return fact(assets.Worse, "cannot be built: "+ErrNoCompiler.Error(), "install gcc and make")
	}
	if given := cmp.Or(o.Options.Kernel, os.Getenv(assets.EnvKernel)); o.Kernel.Image == "" && given != "" {
		return fact(assets.Worse, "not known before there is a guest kernel", "see above")
	}
	if o.Kernel.Image == "" {
		return fact(assets.Good, "built by "+by+" when a guest first needs it, for the kernel that is fetched", "")
	}
	h, err := o.ownHeaders()
	if err != nil {
		return lacking(err)
	}
	path, err := o.path(h)
	if err != nil {
		return lacking(err)
	}
	if _, err := os.Stat(path); err == nil {
		return fact(assets.Good, "in the cache, for kernel "+o.Kernel.Version, "")
	}
	if h == nil {
		if h, err = o.debianHeaders(); err != nil {
			return lacking(err)
		}
	}
	download := ""
	if mb := o.megabytes(h, c); mb > 0 {
		download = fmt.Sprintf(", which downloads about %d MB", mb)
	}
	if h.dir == "" && !canFetch && !assets.HasBundle(o.Options, h.bundle) {
		return fact(assets.Worse, "cannot be built: "+ErrNoHeaders.Error()+", and none can be fetched",
			"name them by --headers DIR")
	}
	if _, err := os.Stat(logOf(path)); err == nil {
		return fact(assets.Worse, "the last build for kernel "+o.Kernel.Version+" failed: "+logOf(path),
			"boot another kernel (--kernel), or a module of your own by $VNIC_GPU_MODULE")
	}
	return fact(assets.Good, "built by "+by+" when a guest first needs it"+download, "")
}
