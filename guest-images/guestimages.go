// Package guestimages builds the initramfs that vnic's guests boot: one static Go program as /init, and kernel modules.
//
// The image is reproducible: the same program and modules give the same bytes, kept in the cache under their hash. What
// differs from run to run (Config) is a second, small archive that the kernel unpacks over the first. The package does
// not start anything.
package guestimages

import (
	"context"
	"errors"
	"io"

	"vnic.dev/vnic/guest-images/agent"
)

// Image is a built initramfs.
type Image struct {
	Path   string // in the cache
	Size   int64
	SHA256 string
}

// Options says what goes into an image.
type Options struct {
	CacheDir   string   // vnic's cache
	ModulesDir string   // the kernel's modules
	Modules    []string // names, as modprobe knows them; what they depend on comes along
	Program    string   // guest program; "" = the embedded one, else built with the go tool
}

// Build makes the image, or finds it in the cache.
func Build(ctx context.Context, o Options) (*Image, error) {
	return nil, errors.New("guestimages: Build: not written yet")
}

// Open gives the image's bytes followed by c as an archive: what qemu.Config.Initrd wants.
func (i *Image) Open(c agent.Config) (io.ReadCloser, error) {
	return nil, errors.New("guestimages: Open: not written yet")
}
