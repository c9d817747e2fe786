package guestimages

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
)

// GPUModule is the kernel module of a GPU that is a PCI device with a driver: guest-images/vnicgpu.
const GPUModule = "vnicgpu"

// EnvGPUModule names a vnicgpu.ko to use in place of those that this program carries.
const EnvGPUModule = "VNIC_GPU_MODULE"

// ErrNoGPUModule says that this program carries no vnicgpu.ko for a kernel.
var ErrNoGPUModule = errors.New("this vnic carries no vnicgpu.ko for it: build one with the kernel's headers, " +
	"make -C HEADERS M=$PWD/guest-images/vnicgpu MO=/tmp/vnicgpu modules, and name it by $" + EnvGPUModule)

// ErrGPUModule says that an error is of vnicgpu.ko.
var ErrGPUModule = errors.New("vnicgpu.ko, the driver of guests' GPUs")

func isOwn(name string) bool { return name == GPUModule }

// ownModules are modules of ours, each once.
func ownModules(names []string, release string) (mods []module, err error) {
	for i, n := range names {
		if slices.Contains(names[:i], n) {
			continue
		}
		m, err := ownModule(n, release)
		if err != nil {
			return nil, err
		}
		mods = append(mods, m)
	}
	return mods, nil
}

// ownModule is a module of ours, for the kernel that has this release.
func ownModule(name, release string) (module, error) {
	file := os.Getenv(EnvGPUModule)
	var b []byte
	var err error
	if file != "" {
		b, err = os.ReadFile(file)
	} else {
		file = name + "-" + release + ".ko.gz"
		if b, err = bin.ReadFile(path.Join("bin", file)); errors.Is(err, fs.ErrNotExist) {
			return module{}, fmt.Errorf("%w: %w%s", ErrGPUModule, ErrNoGPUModule, carried())
		}
	}
	if err != nil {
		return module{}, fmt.Errorf("%w: %w", ErrGPUModule, err)
	}
	m := module{name: name, packed: b, ext: ".ko", file: file}
	if m.content, err = decompress(b); err == nil {
		m.needs, m.release, err = moduleInfo(m.content)
	}
	if err != nil {
		return module{}, fmt.Errorf("%w: %s: %w: %w", ErrGPUModule, file, ErrBadModule, err)
	}
	return m, nil
}

// carried says for which kernels there are modules of ours.
func carried() string {
	var list []string
	files, _ := fs.Glob(bin, "bin/"+GPUModule+"-*.ko.gz")
	for _, f := range files {
		list = append(list, strings.TrimSuffix(strings.TrimPrefix(path.Base(f), GPUModule+"-"), ".ko.gz"))
	}
	if len(list) == 0 {
		return ""
	}
	return "; it carries those for " + strings.Join(list, ", ")
}
