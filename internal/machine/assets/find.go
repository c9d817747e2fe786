package assets

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/proc"
)

// Origins of a Binary, and, but for SourceSystem, of a Kernel.
const (
	SourceGiven  = "given"
	SourceSystem = "system"
	SourceCache  = "cache"
)

// ErrTooOld is the error for a QEMU that is too old.
var ErrTooOld = errors.New("too old")

var versionLine = regexp.MustCompile(`(?m)^QEMU emulator version (\d+\.\d+(?:\.\d+)?)`)

func parseQEMUVersion(out string) (string, error) {
	m := versionLine.FindStringSubmatch(out)
	if m == nil {
		first, _, _ := strings.Cut(out, "\n")
		return "", fmt.Errorf("no QEMU: --version says %q", first)
	}
	return m[1], nil
}

// Run runs QEMU with Args and args until it ends, and returns its standard output.
func (b Binary) Run(ctx context.Context, args ...string) ([]byte, error) {
	return proc.Command{Env: b.Env}.Run(ctx, b.Args[0], slices.Concat(b.Args[1:], args)...)
}

func (b Binary) version(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, limits.QEMUVersion.Here())
	defer cancel()
	out, err := b.Run(ctx, "--version")
	if err != nil {
		return "", err
	}
	return parseQEMUVersion(string(out))
}

// CheckVersion returns an error for a QEMU older than oldest, which is MinQEMU or MinVFIOUser.
func CheckVersion(version, oldest string) error {
	if !older(version, oldest) {
		return nil
	}
	use := "vhost-user"
	if oldest == MinVFIOUser {
		use = "vfio-user"
	}
	return &Missing{What: "QEMU " + version, Err: fmt.Errorf("%w: %w for %s", ErrNoQEMU, ErrTooOld, use),
		Fix: "install " + oldest + " or newer, or give its path (--qemu)"}
}

// checkQEMU returns the QEMU at path, and an error if it does not print its version or is older than oldest.
func checkQEMU(ctx context.Context, path, source, oldest string) (Binary, error) {
	b := Binary{Args: []string{path}, Source: source}
	var err error
	if strings.Contains(path, "/") { // vnic starts machines in the directory /
		if b.Args[0], err = filepath.Abs(path); err != nil {
			return b, err
		}
	}
	if b.Version, err = b.version(ctx); err != nil {
		if ctx.Err() != nil {
			return b, ctx.Err()
		}
		var start *os.PathError // Missing.What has the path already
		if errors.As(err, &start) {
			err = start.Err
		}
		return b, &Missing{What: "QEMU " + path, Err: fmt.Errorf("%w: %w", ErrNoQEMU, err),
			Fix: "install " + oldest + " or newer, or give its path (--qemu)"}
	}
	return b, CheckVersion(b.Version, oldest)
}

// hostQEMU returns the QEMU that the user names, else, without o.IgnoreSystemQEMU, the QEMU in PATH; if Args is nil,
// there is none that can be used. note is why the QEMU in PATH cannot be used; err is about a QEMU that the user names.
func hostQEMU(ctx context.Context, o *Options) (b Binary, note string, err error) {
	if path := cmp.Or(o.QEMU, os.Getenv(EnvQEMU)); path != "" {
		b, err = checkQEMU(ctx, path, SourceGiven, o.oldest())
		return b, "", err
	}
	if o.IgnoreSystemQEMU {
		return b, "", nil
	}
	path, err := exec.LookPath("qemu-system-x86_64")
	if err != nil {
		return b, "", nil
	}
	switch b, err = checkQEMU(ctx, path, SourceSystem, o.oldest()); {
	case err == nil:
		return b, "", nil
	case errors.Is(err, ErrTooOld):
		note = fmt.Sprintf("QEMU %s in PATH is too old (%s or newer is needed)", b.Version, o.oldest())
	default:
		note = fmt.Sprintf("QEMU in PATH cannot be used: %v", err)
	}
	return Binary{}, note, nil
}

// givenKernel returns the kernel that the user names, with the directory of its modules, if any; zero: none is named.
func givenKernel(o *Options) (k Kernel, err error) {
	image, modules := cmp.Or(o.Kernel, os.Getenv(EnvKernel)), cmp.Or(o.Modules, os.Getenv(EnvModules))
	if image == "" {
		return k, nil
	}
	k = Kernel{Image: image, Source: SourceGiven}
	if k.Version, err = kernelVersion(image); err != nil {
		return k, &Missing{What: "kernel " + image, Err: fmt.Errorf("%w: %w", ErrNoKernel, err),
			Fix: bzImageOf(image)}
	}
	if k.Image, err = filepath.Abs(image); err != nil {
		return k, err
	}
	candidates := []string{filepath.Join(modules, "lib/modules", k.Version), filepath.Join(modules, k.Version), modules}
	if modules == "" {
		candidates = []string{filepath.Join("/lib/modules", k.Version)}
	}
	for _, d := range candidates {
		if st, err := os.Stat(d); err == nil && st.IsDir() {
			k.Modules = d
			return k, nil
		}
	}
	if modules != "" {
		return k, &Missing{What: "modules " + modules, Err: fmt.Errorf("%w: no such directory", ErrNoKernel),
			Fix: "give the directory with the modules of kernel " + k.Version + " (--modules)"}
	}
	return k, nil // all drivers may be built in
}

// builtImage is the path of the bzImage in a kernel's build tree.
const builtImage = "arch/x86/boot/bzImage"

// bzImageOf returns advice for a path that is no bzImage: the path of one that was built there, if there is one.
func bzImageOf(path string) string {
	for _, dir := range []string{path, filepath.Dir(path)} {
		built := filepath.Join(dir, builtImage)
		if _, err := kernelVersion(built); err == nil {
			return "give " + built + " (--kernel)"
		}
	}
	return "give the path of a readable bzImage, of a build " + builtImage + " (--kernel)"
}

// notBzImages are the beginnings of files that users mistake for a bzImage.
var notBzImages = []struct{ begins, desc string }{
	{"\x7fELF", "an ELF file, as vmlinux is: that is what a bzImage is packed from"},
	{"\x1f\x8b", "packed by gzip, as a vmlinux.gz is, or another machine's Image.gz"},
	{"(\xb5\x2f\xfd", "packed by zstd"},
	{"\xfd7zXZ", "packed by xz"},
	{"!<arch>\n", "an archive, as a Debian package is: it has the bzImage in boot/"},
	{"MZ", "an EFI program without Linux' boot header for x86, as an arm64 kernel is"},
	{"0707", "an initramfs"},
}

// kernelVersion reads the version from a bzImage, which uname -r will print.
func kernelVersion(path string) (string, error) {
	banner, err := KernelBanner(path)
	if err != nil {
		return "", err
	}
	version, _, ok := strings.Cut(banner, " ")
	if !ok || version == "" || strings.ContainsAny(version, "/\x00") {
		return "", errors.New("a bzImage without a version")
	}
	return version, nil
}

// KernelBanner reads a bzImage's version, and who built it and when (Linux Documentation/arch/x86/boot.rst:
// "HdrS" at 0x202, kernel_version at 0x20e points to a string, less 0x200).
func KernelBanner(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	var head [0x210]byte
	n, err := f.ReadAt(head[:], 0)
	switch {
	case errors.Is(err, unix.EISDIR):
		return "", errors.New("not a bzImage: a directory")
	case n == 0 && errors.Is(err, io.EOF):
		return "", errors.New("not a bzImage: it is empty")
	case err != nil && !errors.Is(err, io.EOF):
		return "", fmt.Errorf("not a bzImage: %w", err)
	case n < len(head) || string(head[0x202:0x206]) != "HdrS":
		for _, k := range notBzImages {
			if strings.HasPrefix(string(head[:n]), k.begins) {
				return "", errors.New("not a bzImage: " + k.desc)
			}
		}
		return "", errors.New("not a bzImage")
	}
	// setup_sects at 0x1f1 counts sectors of 512 bytes after the first; syssize at 0x1f4 is the rest in 16-byte units.
	whole := (int64(head[0x1f1])+1)*512 + int64(binary.LittleEndian.Uint32(head[0x1f4:]))*16
	if st, err := f.Stat(); err == nil && st.Size() < whole {
		return "", fmt.Errorf("a bzImage that is cut short: %d of %d bytes", st.Size(), whole)
	}
	textOff := int64(binary.LittleEndian.Uint16(head[0x20e:])) + 0x200
	var text [256]byte
	n, _ = f.ReadAt(text[:], textOff)
	banner, _, _ := bytes.Cut(text[:n], []byte{0})
	return string(banner), nil
}
