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

// GPUModule is the driver of a guest's GPU, which is a PCI device: guest-images/vnicgpu.
const GPUModule = "vnicgpu"

// EnvGPUModule names a vnicgpu.ko that replaces the built one (internal/machine/assets/gpumodule).
const EnvGPUModule = "VNIC_GPU_MODULE"

// ErrNoGPUModule is the error for an image that needs vnicgpu.ko when no file was given.
var ErrNoGPUModule = errors.New("no file was given: name one by $" + EnvGPUModule)

// ErrGPUModule wraps all errors about vnicgpu.ko.
var ErrGPUModule = errors.New("vnicgpu.ko, the driver of guests' GPUs")

// gpuSource are the sources of vnicgpu.ko.
//
//go:embed vnicgpu/*.c vnicgpu/*.h vnicgpu/Kbuild
var gpuSource embed.FS

// GPUModuleSource returns the source files of vnicgpu.ko.
func GPUModuleSource() fs.FS {
	dir, _ := fs.Sub(gpuSource, "vnicgpu") // Sub fails only for an invalid name
	return dir
}

func isOwn(name string) bool { return name == GPUModule }

// ownModules returns vnic's own modules among names, each once; file is the built vnicgpu.ko.
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

// ownModule reads one of vnic's own modules: the user's file, else the built one.
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
