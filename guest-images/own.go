package guestimages

import (
	"cmp"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
)

// GPUModule is the kernel module of a GPU that is a PCI device with a driver: guest-images/vnicgpu.
const GPUModule = "vnicgpu"

// EnvGPUModule names a vnicgpu.ko to use in place of the one that is built (internal/machine/assets/gpumodule).
const EnvGPUModule = "VNIC_GPU_MODULE"

// ErrNoGPUModule says that an image is to have vnicgpu.ko, and that no file of it was given.
var ErrNoGPUModule = errors.New("no file of it was given: name one by $" + EnvGPUModule)

// ErrGPUModule says that an error is of vnicgpu.ko.
var ErrGPUModule = errors.New("vnicgpu.ko, the driver of guests' GPUs")

// gpuSource is what the module is built from.
//
//go:embed vnicgpu/*.c vnicgpu/*.h vnicgpu/Kbuild
var gpuSource embed.FS

// GPUModuleSource gives the files that vnicgpu.ko is built from.
func GPUModuleSource() fs.FS {
	dir, _ := fs.Sub(gpuSource, "vnicgpu") // an error is of a name that is none
	return dir
}

func isOwn(name string) bool { return name == GPUModule }

// ownModules are modules of ours, each once; file is the one that was built.
func ownModules(names []string, file string) (mods []module, err error) {
	for i, n := range names {
		if slices.Contains(names[:i], n) {
			continue
		}
		m, err := ownModule(n, file)
		if err != nil {
			return nil, err
		}
		mods = append(mods, m)
	}
	return mods, nil
}

// ownModule is a module of ours: the user's file, or the one that was built.
func ownModule(name, file string) (module, error) {
	file = cmp.Or(os.Getenv(EnvGPUModule), file)
	if file == "" {
		return module{}, fmt.Errorf("%w: %w", ErrGPUModule, ErrNoGPUModule)
	}
	b, err := os.ReadFile(file)
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
