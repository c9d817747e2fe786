package image

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"vnic.dev/vnic/internal/machine/qemu"
	"vnic.dev/vnic/internal/version"
)

// DefaultDir is the directory of an image, for `vnic image build` and `vnic serve`, if no flag names another.
const DefaultDir = "guest"

// Files describes an image: the NIC's model, kernel and initrd, and the kernel's command line (Append).
type Files struct {
	NIC            string // device model
	Kernel, Initrd string // absolute paths
	Append         string
}

// ErrNoImage means that a directory has no image of Build's.
var ErrNoImage = errors.New("no guest image: 'vnic image build' makes one")

var (
	readmeLine  = regexp.MustCompile(`^Guest image for a (\S+) NIC, `)
	builtByLine = regexp.MustCompile(`(?m)^Built by vnic (.+), protocol (\d{1,9})\.$`)
)

// maxText bounds the bytes that are read of a text file.
const maxText = 64 << 10

// Load finds the files of an image in a directory. It returns them also with a version.Error, for an image whose
// protocol version is another.
func Load(dir string) (f Files, err error) {
	if dir, err = filepath.Abs(dir); err != nil {
		return f, err
	}
	f.Kernel, f.Initrd = filepath.Join(dir, kernelFile), filepath.Join(dir, initrdFile)
	for _, name := range []string{f.Kernel, f.Initrd} {
		if st, err := os.Stat(name); err != nil || !st.Mode().IsRegular() {
			return f, noImage(dir, name, err)
		}
	}
	line, err := readText(filepath.Join(dir, appendFile))
	if err != nil {
		return f, noImage(dir, appendFile, err)
	}
	f.Append = strings.TrimSpace(line)
	readme, err := readText(filepath.Join(dir, readmeFile))
	if err != nil {
		return f, noImage(dir, readmeFile, err)
	}
	m := readmeLine.FindStringSubmatch(readme)
	if m == nil || strings.ContainsAny(f.Append, "\n\x00") {
		return f, fmt.Errorf("%s: %w: what is there is none", dir, ErrNoImage)
	}
	f.NIC = m[1]
	var theirs version.Hello
	if m := builtByLine.FindStringSubmatch(readme); m != nil {
		theirs.Vnic = m[1]
		theirs.Protocol, _ = strconv.Atoi(m[2])
	}
	return f, version.Ours(protocol).Check(theirs, "the image in "+dir, "build it again: vnic image build --force")
}

func noImage(dir, name string, err error) error {
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s: %w: it has no file %s", dir, ErrNoImage, filepath.Base(name))
	}
	return err
}

func readText(name string) (string, error) {
	f, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(io.LimitReader(f, maxText))
	return string(b), err
}

// Args returns the arguments of a QEMU that boots the image, by KVM or TCG, with the console on the serial line and
// without a NIC. The kernel's command line is for several CPUs: for one, qemu.ForMachine may make another.
func (f *Files) Args(kvm bool) []string {
	accel := qemu.AccelTCG
	if kvm {
		accel = qemu.AccelKVM
	}
	line := qemu.ForMachine(f.Append, 2, accel)
	args := slices.Concat([]string{"-kernel", f.Kernel, "-initrd", f.Initrd, "-append", line}, machineArgs)
	if kvm {
		return append(args, "-accel", "kvm", "-cpu", "host")
	}
	return append(args, byTCG...)
}

var (
	machineArgs = strings.Fields("-nographic -vga none -nic none -no-reboot")
	byTCG       = strings.Fields("-accel tcg,thread=multi -cpu max")
)
