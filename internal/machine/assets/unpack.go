package assets

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/proc"
)

var useless = []string{"usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/lintian",
	"usr/share/bug", "usr/share/info"}

// unpack unpacks packages in dir into root, without the useless parts, removes each package's file, and calls done
// with the number of package bytes so far.
func unpack(ctx context.Context, dir, root string, list []Package, done func(bytes int64)) error {
	var sum int64
	for _, p := range list {
		path := filepath.Join(dir, p.file)
		if _, err := (proc.Command{}).Run(ctx, "dpkg-deb", "-x", path, root); err != nil {
			return aptError("package "+p.Name, err)
		}
		if err := os.Remove(path); err != nil {
			return err
		}
		sum += p.Size
		done(sum)
	}
	for _, d := range useless {
		if err := os.RemoveAll(filepath.Join(root, d)); err != nil {
			return err
		}
	}
	return nil
}

// settle prepares an unpacked tree for the cache: it removes setuid, setgid and sticky bits and write
// permissions of group and others, gives the owner all rights to directories, and syncs. It returns the size of the
// tree's files and directories in bytes.
func settle(root string) (size int64, err error) {
	err = filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		st, err := e.Info()
		if err != nil || st.Mode()&fs.ModeSymlink != 0 {
			return err
		}
		size += st.Size()
		mode := st.Mode().Perm() &^ 0o022 // checkTree refuses these bits
		if st.IsDir() {
			mode |= 0o700
		}
		if st.Mode()&^fs.ModeType != mode {
			return os.Chmod(path, mode)
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	d, err := os.Open(root)
	if err != nil {
		return 0, err
	}
	return size, errors.Join(unix.Syncfs(int(d.Fd())), d.Close())
}

func treeKey(version string, list []Package) string {
	lines := make([]string, len(list))
	for i, p := range list {
		lines[i] = p.Name + " " + p.SHA256
	}
	slices.Sort(lines)
	sum := sha256.Sum256([]byte(strings.Join(lines, "\n")))
	return strings.NewReplacer(":", "_", "/", "_").Replace(version) + "-" + hex.EncodeToString(sum[:6])
}

// Libraries is the directory of libraries in a tree of packages, Loader the path of its glibc's loader.
const (
	Libraries = "usr/lib/x86_64-linux-gnu"
	Loader    = Libraries + "/ld-linux-x86-64.so.2"
)

func binaryOf(root string) (Binary, error) {
	b := Binary{Source: SourceCache}
	for _, need := range []string{Loader, "usr/bin/qemu-system-x86_64", "usr/share/qemu", "usr/share/seabios"} {
		if _, err := os.Stat(filepath.Join(root, need)); err != nil {
			return b, fmt.Errorf("QEMU's packages lack %s: %w", need, err)
		}
	}
	var libs []string
	for _, d := range []string{Libraries, "lib/x86_64-linux-gnu"} {
		if st, err := os.Stat(filepath.Join(root, d)); err == nil && st.IsDir() {
			libs = append(libs, filepath.Join(root, d))
		}
	}
	b.Args = []string{
		filepath.Join(root, Loader), "--library-path", strings.Join(libs, ":"),
		filepath.Join(root, "usr/bin/qemu-system-x86_64"),
		"-L", filepath.Join(root, "usr/share/qemu"), "-L", filepath.Join(root, "usr/share/seabios"),
	}
	b.Env = []string{"QEMU_MODULE_DIR=" + filepath.Join(root, Libraries, "qemu")}
	return b, nil
}

func kernelOf(root string) (Kernel, error) {
	k := Kernel{Source: SourceCache}
	k.Image = single(root, "usr/lib/modules/*/vmlinuz", "lib/modules/*/vmlinuz", "boot/vmlinuz-*")
	if k.Image == "" {
		return k, errors.New("the kernel's packages hold no vmlinuz")
	}
	k.Modules = single(root, "usr/lib/modules/*", "lib/modules/*")
	if k.Modules == "" {
		return k, errors.New("the kernel's packages hold no modules")
	}
	k.Version = filepath.Base(k.Modules)
	if st, err := os.Stat(filepath.Join(root, vmlinuxName)); err == nil && st.Size() > 0 {
		k.ELF = filepath.Join(root, vmlinuxName)
	}
	return k, nil
}

// single returns the match of the first pattern that matches exactly one path; "": no pattern does.
func single(root string, patterns ...string) string {
	for _, p := range patterns {
		if m, _ := filepath.Glob(filepath.Join(root, p)); len(m) == 1 {
			return m[0]
		}
	}
	return ""
}
