// Package guestimages builds the initramfs that vnic's guests boot: one static Go program as /init, and kernel modules.
//
// The image is reproducible: the same program and modules give the same bytes. It is kept in the cache under a hash of
// what it is made of. What differs from run to run (agent.Config) is a second, small archive that the kernel unpacks
// over the first and that never lies in the file system. The package starts no guest.
//
// The package and those below it are not API (README, Stability).
package guestimages

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/agent"
	"vnic.dev/vnic/internal/newc"
)

// format is part of every image's key: change it with the layout.
const format = "vnic guest image 1"

// keep is how long an image that is not opened stays in the cache.
const keep = 7 * 24 * time.Hour

// Image is a built initramfs, not compressed: a guest without KVM unpacks slowly.
type Image struct {
	Path string // in the cache
	Key  string // hash of what it is made of
	Size int64
}

// Options says what goes into an image.
type Options struct {
	CacheDir   string            // vnic's cache
	Kernel     string            // uname -r of the kernel that is to load them; "" = not checked
	ModulesDir string            // the kernel's modules; may be empty when no module is named
	Modules    []string          // names as modprobe knows them; what they need comes along
	GPUModule  string            // vnicgpu.ko, for Modules with GPUModule; $VNIC_GPU_MODULE comes before it
	Applets    []string          // links /bin/NAME to the program
	Userland   *Userland         // u-root's commands, in UserlandDir; nil = none
	Files      map[string]string // more files: path in the guest to path here; their modes are kept
	Program    string            // guest program; "" = $VNIC_GUEST, else the embedded one, else built with the go tool
}

// Build makes the image, or finds it in the cache.
func Build(ctx context.Context, o Options) (*Image, error) {
	program, err := loadProgram(ctx, o)
	if err != nil {
		return nil, err
	}
	mods, err := resolve(o.ModulesDir, o.GPUModule, o.Modules)
	if err == nil {
		err = checkRelease(mods, o.Kernel, o.ModulesDir)
	}
	if err != nil {
		return nil, err
	}
	files, err := readFiles(o.Files)
	if err != nil {
		return nil, err
	}
	applets := slices.Sorted(slices.Values(o.Applets))
	h := sha256.New()
	part := func(name string, content []byte) {
		_, _ = fmt.Fprintf(h, "%s %d %x\n", name, len(content), sha256.Sum256(content))
	}
	part(format, nil)
	part("program", program.content)
	for _, m := range mods {
		part("module "+m.name+" "+strings.Join(m.needs, " "), m.packed)
	}
	for _, f := range files {
		part(fmt.Sprintf("file %#o %s", f.mode, f.name), f.content)
	}
	_, _ = fmt.Fprintf(h, "applets %q\n", applets)
	if o.Userland != nil {
		part("userland", o.Userland.program)
	}
	key := hex.EncodeToString(h.Sum(nil))

	dir := filepath.Join(o.CacheDir, "images")
	img := &Image{Path: filepath.Join(dir, key+".cpio"), Key: key}
	if st, err := os.Stat(img.Path); err == nil {
		now := time.Now()
		_ = os.Chtimes(img.Path, now, now) // marks it used; a cache that we may not write is not pruned either
		img.Size = st.Size()
		return img, nil
	}
	list, err := contents(program, mods, files, applets)
	if err != nil {
		return nil, err
	}
	if o.Userland != nil {
		more, err := o.Userland.archived()
		if err != nil {
			return nil, err
		}
		list = append(list, more...)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("guest image: %w", err)
	}
	prune(dir, time.Now().Add(-keep))
	img.Size, err = write(img.Path, list)
	if err != nil {
		return nil, fmt.Errorf("guest image: %w", err)
	}
	return img, nil
}

// Initrd gives the image's bytes followed by c as an archive: what qemu.Config.Initrd wants. The caller closes it.
func (i *Image) Initrd(c agent.Config) (io.ReadCloser, error) {
	conf, err := json.MarshalIndent(c, "", "\t")
	if err != nil {
		return nil, err
	}
	var second bytes.Buffer
	name := strings.TrimPrefix(agent.ConfigPath, "/")
	_, err = archive(&second, []newc.File{
		newc.Dir(filepath.Dir(name), 0o755),
		newc.Text(name, string(conf), 0o644),
	})
	if err != nil {
		return nil, err
	}
	f, err := os.Open(i.Path)
	if err != nil {
		return nil, fmt.Errorf("guest image: %w", err)
	}
	return struct {
		io.Reader
		io.Closer
	}{io.MultiReader(f, &second), f}, nil
}

// contents gives all files of an image without a userland.
func contents(program program, mods []module, files []file, applets []string) ([]newc.File, error) {
	init, err := program.unpack()
	if err != nil {
		return nil, err
	}
	list := []newc.File{
		newc.Dir("bin", 0o755),
		newc.Dir("dev", 0o755),
		newc.CharDevice("dev/console", 0o600, 5, 1), // init's stdio, before there is a devtmpfs
		newc.CharDevice("dev/null", 0o666, 1, 3),
		newc.Dir("vnic", 0o755),
		newc.Dir(strings.TrimPrefix(agent.ModulesPath, "/"), 0o755),
		newc.Text("init", string(init), 0o755),
	}
	for _, a := range applets {
		if a == "" || strings.ContainsAny(a, "/\x00") {
			return nil, fmt.Errorf("guest image: %q is no name for an applet", a)
		}
		list = append(list, newc.Link("bin/"+a, "/init"))
	}
	for _, m := range mods {
		base := strings.TrimPrefix(agent.ModulesPath, "/") + "/" + m.name
		list = append(list, newc.Text(base+".needs", strings.Join(m.needs, "\n"), 0o644))
		if m.content != nil {
			list = append(list, newc.Text(base+m.ext, string(m.content), 0o644))
		}
	}
	for _, f := range files {
		list = append(list, newc.Text(f.name, string(f.content), f.mode))
	}
	return list, nil
}

// archive writes files, and pads the end so that another archive may follow. It returns how much that was.
func archive(w io.Writer, list []newc.File) (int64, error) {
	a := newc.NewWriter(w)
	for i, f := range list {
		f.Ino = uint32(i + 1)
		if err := a.Add(f); err != nil {
			return 0, err
		}
	}
	if err := a.Close(); err != nil {
		return 0, err
	}
	pad := -a.Len() & 511
	_, err := w.Write(make([]byte, pad))
	return a.Len() + pad, err
}

// write puts the archive where others see it only when it is whole. Until then it has no name,
// where the file system can do that (open(2), O_TMPFILE): a process that is killed leaves nothing.
func write(path string, list []newc.File) (size int64, err error) {
	dir := filepath.Dir(path)
	f, err := os.OpenFile(dir, os.O_RDWR|unix.O_TMPFILE, 0o644)
	named := err != nil
	if named {
		f, err = os.CreateTemp(dir, ".new-*")
	}
	if err != nil {
		return 0, err
	}
	defer func() {
		err = errors.Join(err, f.Close())
		if err != nil && named {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	if size, err = archive(f, list); err == nil {
		err = f.Chmod(0o644)
	}
	switch {
	case err != nil:
	case named:
		err = os.Rename(f.Name(), path)
	default:
		self := fmt.Sprintf("/proc/self/fd/%d", f.Fd())
		err = unix.Linkat(unix.AT_FDCWD, self, unix.AT_FDCWD, path, unix.AT_SYMLINK_FOLLOW)
		if errors.Is(err, unix.EEXIST) { // another process has made the same
			err = nil
		}
	}
	return size, err
}

// prune removes images, and pieces of them, that were last used before t.
func prune(dir string, t time.Time) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if st, err := e.Info(); err == nil && st.Mode().IsRegular() && st.ModTime().Before(t) {
			_ = os.Remove(filepath.Join(dir, e.Name()))
		}
	}
}

type file struct {
	name    string
	mode    uint32
	content []byte
}

func readFiles(m map[string]string) ([]file, error) {
	var files []file
	for name, path := range m {
		st, err := os.Stat(path)
		if err != nil {
			return nil, fmt.Errorf("guest image: %w", err)
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("guest image: %w", err)
		}
		files = append(files, file{name: strings.TrimPrefix(filepath.Clean("/"+name), "/"),
			mode: uint32(st.Mode().Perm()), content: content})
	}
	slices.SortFunc(files, func(a, b file) int { return strings.Compare(a.name, b.name) })
	return files, nil
}
