// Package guestimages builds the initramfs of vnic's guests: a static Go program as /init, kernel modules, and
// more.
//
// The same inputs give the same bytes, which a cache keeps for at least a week after their last use. Data of
// one run (agent.Config) is a second archive in memory (Image.Initrd).
//
// The package and those below it are not API (README, Stability).
package guestimages

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"vnic.dev/vnic/internal/agent"
	"vnic.dev/vnic/internal/newc"
	"vnic.dev/vnic/internal/outfile"
)

// format is a part of the images' keys: change it when the layout changes.
const format = "vnic guest image 1"

// keep is how long an image stays unused before the build of another one may remove it.
const keep = 7 * 24 * time.Hour

// Image is an initramfs. It is not compressed: a guest without KVM decompresses slowly.
type Image struct {
	Path string // in the cache
	Key  string // hash of the inputs
	Size int64
}

// Options are the inputs of an image.
type Options struct {
	CacheDir   string            // the directory of vnic's cache
	Kernel     string            // release of the guest's kernel, for which modules must be made; "": not checked
	ModulesDir string            // the kernel's module directory; may be empty without Modules other than vnicgpu
	Modules    []string          // names as for modprobe
	GPUModule  string            // path of vnicgpu.ko; $VNIC_GPU_MODULE overrides it
	Applets    []string          // names of links /bin/NAME to the program
	Userland   *Userland         // nil: none
	Files      map[string]string // path in the guest to path on this machine
	Program    string            // its path; "": $VNIC_GUEST, else the embedded one, the cache's, or the go tool's
}

// Build builds an image, or finds it in the cache.
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
		_ = os.Chtimes(img.Path, now, now) // prune looks at this time
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
	err = outfile.Replace(img.Path, func(f *os.File) (err error) {
		img.Size, err = archive(f, list)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("guest image: %w", err)
	}
	return img, nil
}

// Initrd returns a reader of the image, followed by an archive with the file of c. The caller closes the reader.
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

func contents(program program, mods []module, files []file, applets []string) ([]newc.File, error) {
	init, err := program.unpack()
	if err != nil {
		return nil, err
	}
	list := []newc.File{
		newc.Dir("bin", 0o755),
		newc.Dir("dev", 0o755),
		newc.CharDevice("dev/console", 0o600, 5, 1), // for the standard streams of init
		newc.CharDevice("dev/null", 0o666, 1, 3),
		newc.Dir("vnic", 0o755),
		newc.Dir(strings.TrimPrefix(agent.ModulesPath, "/"), 0o755),
		newc.Text("init", string(init), 0o755),
	}
	for _, a := range applets {
		if a == "" || strings.ContainsAny(a, "/\x00") {
			return nil, fmt.Errorf("guest image: %q is not a valid applet name", a)
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

// archive writes an archive, padded so that another one can follow, and returns the length with the padding.
func archive(w io.Writer, list []newc.File) (int64, error) {
	n, err := newc.Write(w, list)
	if err != nil {
		return 0, err
	}
	pad := -n & 511
	_, err = w.Write(make([]byte, pad))
	return n + pad, err
}

// prune removes regular files of dir whose modification time, which Build sets at each use, is before t.
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

func readFiles(m map[string]string) (files []file, err error) {
	for name, path := range m {
		var content []byte
		st, err := os.Stat(path)
		if err == nil {
			content, err = os.ReadFile(path)
		}
		if err != nil {
			return nil, fmt.Errorf("guest image: %w", err)
		}
		files = append(files, file{name: strings.TrimPrefix(filepath.Clean("/"+name), "/"),
			mode: uint32(st.Mode().Perm()), content: content})
	}
	slices.SortFunc(files, func(a, b file) int { return strings.Compare(a.name, b.name) })
	return files, nil
}
