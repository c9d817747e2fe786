package image

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"vnic.dev/vnic/internal/job/boot"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/machine/assets"
	"vnic.dev/vnic/internal/version"
)

// files of an image's directory
const (
	kernelFile = "kernel"
	initrdFile = "initrd"
	appendFile = "append"
	readmeFile = "README"
)

// protocol is the version of the protocols between an image's programs and the NICs of `vnic serve`.
const protocol = 2

// builtBy is the format of the last line of an image's README.
const builtBy = "\nBuilt by vnic %s, protocol %d.\n"

// BuildOptions are the flags of `vnic image build`.
type BuildOptions struct {
	Dir   string
	Force bool
	Guest boot.Options
}

// Build writes the directory of an image, and prints how to use it.
func Build(ctx context.Context, o BuildOptions, out io.Writer) (err error) {
	o.Dir = filepath.Clean(o.Dir)
	// Check before anything is fetched.
	if err := replaceable(o.Dir, o.Force, fs.FileMode.IsDir, "not a directory"); err != nil {
		return err
	}
	img, err := boot.NewImage(ctx, o.Guest)
	if err != nil {
		return err
	}
	defer func() {
		if cerr := img.Close(); err == nil {
			err = cerr
		}
	}()
	var readme bytes.Buffer
	u := usage{NIC: o.Guest.NIC, XDP: o.Guest.XDP, Dir: ".", Kernel: img.Kernel.Version, Memory: o.Guest.Memory}
	if err := u.print(&readme); err != nil {
		return err
	}
	ours := version.Ours(protocol)
	_, _ = fmt.Fprintf(&readme, builtBy, ours.Vnic, ours.Protocol)
	if err := writeDir(o.Dir, o.Force, map[string]content{
		kernelFile: {0o644, func(w io.Writer) error { return copyFile(w, img.Kernel.Image) }},
		initrdFile: {0o644, func(w io.Writer) error { return img.WriteInitrd(stopping{ctx, w}) }},
		appendFile: {0o644, func(w io.Writer) error { _, err := fmt.Fprintln(w, img.Append); return err }},
		readmeFile: {0o644, func(w io.Writer) error { _, err := w.Write(readme.Bytes()); return err }},
	}); err != nil {
		return err
	}
	u.Dir = o.Dir
	return u.print(out)
}

func copyFile(w io.Writer, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	_, err = io.Copy(w, f)
	return err
}

type stopping struct {
	ctx context.Context
	w   io.Writer
}

func (s stopping) Write(b []byte) (int, error) {
	if err := context.Cause(s.ctx); err != nil {
		return 0, err
	}
	return s.w.Write(b)
}

type usage struct {
	NIC    string
	XDP    bool
	Dir    string
	Kernel string
	Memory uint64
}

func (u *usage) print(w io.Writer) error {
	oldest := assets.MinQEMU
	if m, _ := lab.LookupModel(u.NIC); m.VFIOUser {
		oldest = assets.MinVFIOUser
	}
	xdp := ""
	if u.XDP {
		xdp = " --xdp"
	}
	pathOf := func(name string) string { return filepath.Join(u.Dir, name) }
	_, err := fmt.Fprintf(w, `Guest image for a %s NIC, kernel %s. In one terminal:

  vnic serve --socket-path $XDG_RUNTIME_DIR/vnic.sock --nic %s%s --image %s

It prints the command for another terminal, for QEMU %s or newer ('vnic qemu' is one). RAM may be any from %s.
Of the command these flags are the image's:

  -kernel %s -initrd %s -append "$(cat %s)" \
  %s

With KVM: -accel kvm -cpu host. The guest powers off when its program ends; C-a x ends QEMU at once.
`, u.NIC, u.Kernel, u.NIC, xdp, u.Dir, oldest, lab.FormatBytes(u.Memory), pathOf(kernelFile), pathOf(initrdFile),
		pathOf(appendFile), strings.Join(slices.Concat(machineArgs, byTCG), " "))
	return err
}
