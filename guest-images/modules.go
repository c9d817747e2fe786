package guestimages

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"debug/elf"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"
)

// ErrNoModule means that a kernel's module directory has no such module, and does not name it as built in.
var ErrNoModule = errors.New("not among the kernel's modules")

// ErrOtherKernel means that a module was made for another kernel.
var ErrOtherKernel = errors.New("made for another kernel")

// ErrBadModule means that a file cannot be read as a module.
var ErrBadModule = errors.New("cannot be read as a module")

type module struct {
	name    string   // with underscores, as in the kernel
	needs   []string // dependencies; empty also for a module that is built in
	release string   // "": unknown
	packed  []byte   // the file's bytes
	content []byte   // the unpacked bytes, with zstdModule the packed ones; nil: built in
	ext     string   // ".ko", or zstdModule; "": built in
	file    string   // path of the file; "": built in
}

// zstdModule is the ext of modules that stay packed, as the guest's kernel decompresses them itself.
const zstdModule = ".ko.zst"

// resolve finds modules and, before each, its dependencies, which the module itself names, or modules.dep for a .ko.zst
// file.
//
// It reads vnicgpu from $VNIC_GPU_MODULE, else from gpuModule, never from dir.
func resolve(dir, gpuModule string, names []string) (mods []module, err error) {
	var index map[string]string
	var builtin map[string]bool
	var dep map[string][]string
	if len(names) > 0 && (dir != "" || slices.ContainsFunc(names, func(n string) bool { return !isOwn(n) })) {
		if index, builtin, err = scan(dir); err == nil {
			dep, err = readDep(filepath.Join(dir, "modules.dep"))
		}
		if err != nil {
			return nil, fmt.Errorf("kernel modules: %w", err)
		}
	}
	seen := map[string]bool{}
	var add func(name, from string) error
	add = func(name, from string) error {
		name = kernelName(name)
		if seen[name] {
			return nil
		}
		seen[name] = true
		path, ok := index[name]
		m := module{name: name}
		var err error
		switch {
		case isOwn(name):
			m, err = ownModule(name, gpuModule)
		case !ok && !builtin[name]:
			err = fmt.Errorf("module %s%s: %w in %s", name, from, ErrNoModule, dir)
		case ok:
			m, err = readModule(name, path, false)
		}
		if err != nil {
			return err
		}
		if m.ext == zstdModule {
			m.needs = dep[name]
		}
		for _, n := range m.needs {
			if err := add(n, ", needed by "+name); err != nil {
				return err
			}
		}
		mods = append(mods, m)
		return nil
	}
	for _, n := range names {
		if err := add(n, ""); err != nil {
			return nil, err
		}
	}
	return mods, nil
}

// HasModule reports whether the kernel's module directory has a file of the module.
func HasModule(dir, name string) bool {
	index, _, err := scan(dir)
	_, ok := index[kernelName(name)]
	return err == nil && ok
}

func kernelName(s string) string { return strings.ReplaceAll(s, "-", "_") }

// moduleName returns the kernel's name of the module in a file with this name; "": it is not the name of a module.
func moduleName(base string) string {
	name, rest, ok := strings.Cut(base, ".ko")
	if !ok || (rest != "" && rest != ".xz" && rest != ".gz" && rest != ".zst" && !unknownPack(rest)) {
		return ""
	}
	return kernelName(name)
}

// unknownPack reports whether the suffix is of a compression that is not supported.
func unknownPack(ext string) bool {
	return ext == ".bz2" || ext == ".lz4" || ext == ".lzma" || ext == ".lzo"
}

// scan returns the paths of the module files by name, and the names in modules.builtin.
func scan(dir string) (index map[string]string, builtin map[string]bool, err error) {
	if dir == "" {
		return nil, nil, errors.New("no module directory given: name one with --modules")
	}
	index, builtin = map[string]string{}, map[string]bool{}
	err = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := moduleName(e.Name()); name != "" && e.Type().IsRegular() {
			index[name] = path
		}
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	f, err := os.Open(filepath.Join(dir, "modules.builtin"))
	if errors.Is(err, os.ErrNotExist) {
		return index, builtin, nil
	}
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = f.Close() }()
	for s := bufio.NewScanner(f); s.Scan(); {
		builtin[moduleName(filepath.Base(s.Text()))] = true
	}
	return index, builtin, nil
}

// readDep reads modules.dep, which has lines like "kernel/a/x.ko.zst: kernel/b/y.ko.zst ...".
func readDep(path string) (map[string][]string, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	dep := map[string][]string{}
	for line := range strings.SplitSeq(string(b), "\n") {
		module, needs, _ := strings.Cut(line, ":")
		for n := range strings.FieldsSeq(needs) {
			name := moduleName(filepath.Base(module))
			dep[name] = append(dep[name], moduleName(filepath.Base(n)))
		}
	}
	return dep, err
}

// readModule reads a module's file. Unless unpack is set, a .ko.zst file stays packed, and its needs and
// release are not read. Its errors wrap ErrBadModule.
func readModule(name, path string, unpack bool) (module, error) {
	m := module{name: name, ext: ".ko", file: path}
	ext := filepath.Ext(path)
	var err error
	switch {
	case unknownPack(ext):
		err = fmt.Errorf("%s is unknown: it must be unpacked, or packed by xz, gzip or zstd", ext)
	case ext == ".zst" && !unpack:
		m.ext = zstdModule
		m.packed, err = os.ReadFile(path)
		m.content = m.packed
	default:
		if m.packed, err = os.ReadFile(path); err == nil {
			err = m.parse()
		}
	}
	if err != nil {
		err = fmt.Errorf("module %s: %s: %w: %w", name, path, ErrBadModule, err)
	}
	return m, err
}

func (m *module) parse() (err error) {
	if m.content, err = decompress(m.packed); err == nil {
		m.needs, m.release, err = moduleInfo(m.content)
	}
	return err
}

// checkRelease returns ErrOtherKernel if a module was made for another kernel than release. If release or that module's
// own is "", they are not compared.
func checkRelease(mods []module, release, dir string) error {
	for _, m := range mods {
		switch {
		case release == "" || m.release == "" || m.release == release:
		case isOwn(m.name):
			return fmt.Errorf("%w: %s: %w: its is %s, this is %s", ErrGPUModule, m.file, ErrOtherKernel, m.release, release)
		default:
			return fmt.Errorf("module %s of %s: %w: its is %s, this is %s", m.name, dir, ErrOtherKernel, m.release, release)
		}
	}
	return nil
}

// maxModule is the most bytes to which decompress unpacks a module.
const maxModule = 256 << 20

func decompress(b []byte) ([]byte, error) {
	var r io.Reader
	var err error
	switch {
	case bytes.HasPrefix(b, []byte("\xfd7zXZ\x00")):
		r, err = xz.NewReader(bytes.NewReader(b))
	case bytes.HasPrefix(b, []byte{0x1f, 0x8b}):
		r, err = gzip.NewReader(bytes.NewReader(b))
	case bytes.HasPrefix(b, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		var z *zstd.Decoder
		if z, err = zstd.NewReader(bytes.NewReader(b), zstd.WithDecoderConcurrency(1)); err == nil {
			defer z.Close()
		}
		r = z
	default:
		return b, nil
	}
	if err != nil {
		return nil, err
	}
	out, err := io.ReadAll(io.LimitReader(r, maxModule+1))
	if err == nil && len(out) > maxModule {
		err = fmt.Errorf("more than %d bytes unpacked", maxModule)
	}
	return out, err
}

// moduleInfo reads "depends=a,b" and "vermagic=RELEASE ..." of the section .modinfo (Linux include/linux/module.h,
// MODULE_INFO).
func moduleInfo(ko []byte) (needs []string, release string, err error) {
	f, err := elf.NewFile(bytes.NewReader(ko))
	if err != nil {
		return nil, "", err
	}
	s := f.Section(".modinfo")
	if s == nil {
		return nil, "", errors.New("no .modinfo section")
	}
	info, err := s.Data()
	if err != nil {
		return nil, "", err
	}
	for field := range bytes.SplitSeq(info, []byte{0}) {
		if list, ok := bytes.CutPrefix(field, []byte("depends=")); ok && len(list) > 0 {
			for n := range strings.SplitSeq(string(list), ",") {
				needs = append(needs, kernelName(n))
			}
		}
		if magic, ok := bytes.CutPrefix(field, []byte("vermagic=")); ok {
			release, _, _ = strings.Cut(string(magic), " ")
		}
	}
	return needs, release, nil
}

// GPUModule is the name of the module that drives a guest's GPU: guest-images/vnicgpu.
const GPUModule = "vnicgpu"

// EnvGPUModule is the environment variable with the path of a vnicgpu.ko that replaces the built one.
const EnvGPUModule = "VNIC_GPU_MODULE"

// ErrNoGPUModule means that no vnicgpu.ko was given.
var ErrNoGPUModule = errors.New("no file was given: name one by $" + EnvGPUModule)

// ErrGPUModule is wrapped by errors about the file vnicgpu.ko.
var ErrGPUModule = errors.New("vnicgpu.ko, the driver of guests' GPUs")

//go:embed vnicgpu/*.c vnicgpu/*.h vnicgpu/Kbuild
var gpuSource embed.FS

// GPUModuleSource returns the sources of vnicgpu.ko.
func GPUModuleSource() fs.FS {
	dir, _ := fs.Sub(gpuSource, "vnicgpu") // the error is only for an invalid name
	return dir
}

func isOwn(name string) bool { return name == GPUModule }

// ownModule reads vnicgpu from $VNIC_GPU_MODULE, or else from file.
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

// ModuleFile is a kernel module's file, or, with zero fields, a module that is built in.
type ModuleFile struct {
	Path    string // "": built in
	Release string // "": unknown
	content []byte
}

// FindModule looks for a module in a kernel's module directory. Among its errors are ErrNoModule and
// ErrBadModule.
func FindModule(dir, name string) (*ModuleFile, error) {
	index, builtin, err := scan(dir)
	if err != nil {
		return nil, fmt.Errorf("kernel modules: %w", err)
	}
	name = kernelName(name)
	path, ok := index[name]
	switch {
	case !ok && builtin[name]:
		return &ModuleFile{}, nil
	case !ok:
		return nil, fmt.Errorf("module %s: %w in %s", name, ErrNoModule, dir)
	}
	m, err := readModule(name, path, true)
	if err != nil {
		return nil, err
	}
	return &ModuleFile{Path: path, Release: m.release, content: m.content}, nil
}

// Names reports whether the module's file has a symbol's name between zero bytes, as a module does that defines or
// imports it. For a module that is built in it returns false.
func (m *ModuleFile) Names(symbol string) bool {
	return bytes.Contains(m.content, []byte("\x00"+symbol+"\x00"))
}

// ModuleFiles returns the files in the kernel's module directory of these modules and their dependencies, but not
// vnicgpu's. Among its errors are ErrNoModule and ErrBadModule.
func ModuleFiles(dir string, names []string) (paths []string, err error) {
	mods, err := resolve(dir, "", names)
	for _, m := range mods {
		if m.file != "" && !isOwn(m.name) {
			paths = append(paths, m.file)
		}
	}
	slices.Sort(paths)
	return paths, err
}
