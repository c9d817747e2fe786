package assets

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"vnic.dev/vnic/internal/elfdeps"
	"vnic.dev/vnic/internal/machine/assets/offline"
)

// Export is the input of WriteArchive.
type Export struct {
	Vnic    string    // version of the program
	Program io.Reader // the executable file of vnic
	For     []string  // commands of vnic for which the archive is made
	Modules []string  // paths of kernel modules, in the kernel's tree
	Extras  []string  // other entries of the cache, KIND/NAME: u-root's commands
}

// firmware are files below usr/share/qemu that QEMU opens when it boots vnic's guests, found with strace: pvh.bin for
// a kernel as ELF, linuxboot_dma.bin for a bzImage.
var firmware = []string{"efi-virtio.rom", "kvmvapic.bin", "linuxboot_dma.bin", "multiboot_dma.bin", "pvh.bin"}

// FetchCached returns the cache's QEMU, with vfio-user, and the cache's kernel. It fetches them if they are missing,
// or with o.Refresh, but not with o.Offline. The caller closes the result.
func FetchCached(ctx context.Context, o Options) (*Resolved, error) {
	o.silence()
	dir, err := CacheDir(o)
	if err != nil {
		return nil, err
	}
	o.VFIOUser, o.KernelOnly, o.CachedQEMU = true, false, false
	r := &Resolved{Cache: dir}
	if err := r.fromCache(ctx, cache{dir}, &o); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// WriteArchive returns an archive of r, a result of FetchCached: the files of QEMU that guests need, the kernel with
// x.Modules, x.Program (stripped), and x.Extras.
func (r *Resolved) WriteArchive(ctx context.Context, x Export) ([]byte, error) {
	have, err := cache{r.Cache}.load()
	if err != nil {
		return nil, err
	}
	qemu, kernel := have[roleQEMU], have[roleKernel]
	within := func(t *tree, file string) bool {
		return t != nil && strings.HasPrefix(file, filepath.Join(r.Cache, t.Dir)+"/")
	}
	if !within(qemu, r.QEMU.Args[0]) || !within(kernel, r.Kernel.Image) {
		return nil, fmt.Errorf("cache %s: another vnic has replaced QEMU or the kernel in this moment: try again", r.Cache)
	}
	files := map[string]string{} // on this machine, by path in the archive
	trees := resolved{}
	add := func(role string, t tree, names []string) {
		from := filepath.Join(r.Cache, t.Dir)
		t.For = x.For
		t.Dir = path.Join(role, partialKey(&t, names))
		for _, n := range names {
			files[path.Join(t.Dir, n)] = filepath.Join(from, n)
		}
		trees[role] = &t
	}
	names, err := qemuFiles(filepath.Join(r.Cache, qemu.Dir))
	if err != nil {
		return nil, err
	}
	add(roleQEMU, *qemu, names)
	if names, err = kernelFiles(filepath.Join(r.Cache, kernel.Dir), &r.Kernel, x.Modules); err != nil {
		return nil, err
	}
	add(roleKernel, *kernel, names)
	for _, name := range x.Extras {
		err := filepath.WalkDir(filepath.Join(r.Cache, name), func(file string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			rel, err := filepath.Rel(r.Cache, file)
			if err == nil && !extra.MatchString(rel) {
				err = fmt.Errorf("cache: %s cannot be exported", rel)
			}
			files[rel] = file
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	m := offline.Manifest{Vnic: x.Vnic, For: x.For}
	if m.Trees, err = json.Marshal(trees); err != nil {
		return nil, err
	}
	program, err := stripped(x.Program)
	if err != nil {
		return nil, err
	}
	// open follows links: the archive has none.
	open := func(p string) (fs.File, error) { return os.Open(files[p]) }
	return offline.Write(ctx, m, bytes.NewReader(program), slices.Collect(maps.Keys(files)), open)
}

// qemuFiles returns the paths in root, QEMU's tree, of the files that guests need: program, its loader and libraries
// (elfdeps), firmware.
func qemuFiles(root string) ([]string, error) {
	const program = "usr/bin/qemu-system-x86_64"
	find := elfdeps.Finder{Root: root, LibraryPath: []string{"/" + Libraries}, Interpreter: "/" + Loader}
	found, err := find.Find("/" + program)
	if err != nil {
		return nil, fmt.Errorf("cache: QEMU's packages in %s: %w", root, err)
	}
	list := []string{program}
	for _, file := range found {
		list = append(list, strings.TrimPrefix(file, "/"))
	}
	bios, err := filepath.Glob(filepath.Join(root, "usr/share/seabios/*.bin"))
	if err != nil || len(bios) == 0 {
		return nil, fmt.Errorf("cache: QEMU's packages have no usr/share/seabios: %w", errors.Join(err, fs.ErrNotExist))
	}
	for _, f := range bios {
		list = append(list, path.Join("usr/share/seabios", filepath.Base(f)))
	}
	for _, f := range firmware {
		name := path.Join("usr/share/qemu", f)
		if _, err := os.Stat(filepath.Join(root, name)); err == nil { // not all versions have all files
			list = append(list, name)
		}
	}
	return list, nil
}

// kernelFiles returns the paths relative to root of the kernel image, of modules, and of modules.builtin and
// modules.dep if they exist.
func kernelFiles(root string, k *Kernel, modules []string) ([]string, error) {
	files := append([]string{k.Image}, modules...)
	for _, name := range []string{"modules.builtin", "modules.dep"} {
		if f := filepath.Join(k.Modules, name); exists(f) {
			files = append(files, f)
		}
	}
	for i, f := range files {
		rel, err := filepath.Rel(root, f)
		if err != nil || !filepath.IsLocal(rel) {
			return nil, fmt.Errorf("cache: %s is not of the kernel in %s", f, root)
		}
		files[i] = filepath.ToSlash(rel)
	}
	return files, nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// partialKey returns the name of a tree with the files names: its version, and a hash of its packages and names.
func partialKey(t *tree, names []string) string {
	list := slices.Clone(t.Packages)
	for _, n := range names {
		list = append(list, Package{Name: "file", SHA256: n})
	}
	return treeKey(t.Version, list)
}

// maxProgram bounds the size in bytes of the program that stripped reads.
const maxProgram = 512 << 20

// stripped reads an ELF program and returns it without what follows its segments, such as symbols and debug
// information. It returns files that are no valid 64-bit little-endian ELF whole.
func stripped(r io.Reader) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxProgram+1))
	if err != nil {
		return nil, fmt.Errorf("the program: %w", err)
	}
	if len(b) > maxProgram {
		return nil, fmt.Errorf("the program: more than %d bytes", maxProgram)
	}
	f, err := elf.NewFile(bytes.NewReader(b))
	if err != nil || f.Class != elf.ELFCLASS64 || f.Data != elf.ELFDATA2LSB {
		return b, nil
	}
	end := uint64(0)
	for _, p := range f.Progs {
		if p.Off > uint64(len(b)) || p.Filesz > uint64(len(b))-p.Off {
			return b, nil
		}
		if p.Type != elf.PT_GNU_STACK {
			end = max(end, p.Off+p.Filesz)
		}
	}
	const shoff, shnum, headLen = 0x28, 0x3c, 0x40 // offsets of e_shoff and e_shnum, and the size of Elf64_Ehdr
	if end < headLen {
		return b, nil
	}
	b = b[:end]
	binary.LittleEndian.PutUint64(b[shoff:], 0)
	binary.LittleEndian.PutUint32(b[shnum:], 0)
	return b, nil
}
