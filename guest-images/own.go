package guestimages

import (
	"cmp"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
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

// ownModule reads one of vnic's own modules: the user's file, else the built one.
func ownModule(name, file string) (module, error) {
	m := module{name: name, ext: ".ko", file: cmp.Or(os.Getenv(EnvGPUModule), file)}
	if m.file == "" {
		return m, fmt.Errorf("%w: %w", ErrGPUModule, ErrNoGPUModule)
	}
	var err error
	if m.packed, err = os.ReadFile(m.file); err != nil {
		return m, fmt.Errorf("%w: %w", ErrGPUModule, err)
	}
	if err = m.parse(); err != nil {
		err = fmt.Errorf("%w: %s: %w: %w", ErrGPUModule, m.file, ErrBadModule, err)
	}
	return m, err
}
