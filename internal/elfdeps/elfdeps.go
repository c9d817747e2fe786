// Package elfdeps finds the files that a dynamic program needs to start on another machine: its interpreter and its
// libraries, and the libraries of these, where the dynamic linker would find them on this machine, or in another root
// directory (ld.so(8), "DESCRIPTION").
//
// It does not find files that a program or its libraries open later, with dlopen(3) or otherwise, except libgcc_s,
// which glibc opens for pthread_exit(3) and pthread_cancel(3), if it is there.
package elfdeps

import (
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// ErrMissing means that a library or the interpreter was not found.
var ErrMissing = errors.New("not found on this machine")

const (
	maxLibraries = 1000
	maxPath      = 4096
)

// Finder looks for libraries.
type Finder struct {
	Root        string   // of the file system to search; "": "/"
	LibraryPath []string // directories in Root, searched like the directories in LD_LIBRARY_PATH
	Interpreter string   // path in Root of the interpreter that will run the program; "": the one that it names
}

type object struct {
	path    string // in the Finder's Root
	class   elf.Class
	machine elf.Machine
	interp  string
	soname  string
	needed  []string
	rpath   []string
	runpath []string
	parent  *object // the object for which this library was looked up first; nil: this is the program
}

// Find returns the files that a program or library needs, the interpreter (if there is one) first; without
// Interpreter, none for a static program. The paths are in Root, and absolute unless LibraryPath is not. A path is
// what the dynamic linker will open, perhaps a symbolic link here.
func (f Finder) Find(program string) ([]string, error) {
	program, err := filepath.Abs(program)
	if err != nil {
		return nil, err
	}
	if real, err := filepath.EvalSymlinks(program); err == nil && f.Root == "" {
		program = real
	}
	o, err := f.read(program)
	if err != nil {
		return nil, err
	}
	if f.Interpreter != "" {
		o.interp = f.Interpreter
	}
	var files []string
	found := map[string]bool{}
	if o.interp != "" {
		if _, err := os.Stat(f.host(o.interp)); err != nil {
			return nil, fmt.Errorf("%s: its interpreter %s: %w", program, o.interp, ErrMissing)
		}
		files = append(files, o.interp)
		found[filepath.Base(o.interp)] = true
	}
	dirs := f.systemDirs(o)
	add := func(lib *object, name string) {
		found[name], found[lib.soname] = true, true
		if !slices.Contains(files, lib.path) {
			files = append(files, lib.path)
		}
	}
	for queue := []*object{o}; len(queue) > 0; queue = queue[1:] {
		for _, name := range queue[0].needed {
			if found[name] {
				continue
			}
			lib, searched := f.find(name, queue[0], dirs)
			if lib == nil {
				return nil, fmt.Errorf("%s needs the library %s: %w (looked in %s)", queue[0].path, name, ErrMissing,
					strings.Join(searched, ", "))
			}
			add(lib, name)
			if queue = append(queue, lib); len(files) > maxLibraries {
				return nil, fmt.Errorf("%s: needs more than %d libraries", program, maxLibraries)
			}
		}
	}
	const unwinder = "libgcc_s.so.1"
	if found["libc.so.6"] && !found[unwinder] {
		if lib, _ := f.find(unwinder, o, dirs); lib != nil {
			add(lib, unwinder)
		}
	}
	return files, nil
}

func (f Finder) host(path string) string { return filepath.Join(f.Root, path) }

func (f Finder) find(name string, by *object, system []string) (*object, []string) {
	if strings.Contains(name, "/") {
		if lib := f.fits(name, by); lib != nil && filepath.IsAbs(name) {
			return lib, nil
		}
		return nil, []string{name}
	}
	var dirs []string
	if len(by.runpath) == 0 { // glibc's dynamic linker ignores the DT_RPATH of an object that has DT_RUNPATH
		for o := by; o != nil; o = o.parent {
			if len(o.runpath) == 0 {
				dirs = append(dirs, o.rpath...)
			}
		}
	}
	var searched []string
	for _, dir := range slices.Concat(dirs, f.LibraryPath, by.runpath, system) {
		if slices.Contains(searched, dir) {
			continue
		}
		searched = append(searched, dir)
		if lib := f.fits(filepath.Join(dir, name), by); lib != nil {
			return lib, nil
		}
	}
	return nil, searched
}

// fits reads the library at path. It returns nil if there is none that can be read, or if it is for another machine
// than by's, in which case the dynamic linker skips it.
func (f Finder) fits(path string, by *object) *object {
	lib, err := f.read(path)
	if err != nil || lib.class != by.class || lib.machine != by.machine {
		return nil
	}
	lib.parent = by
	return lib
}

func (f Finder) read(path string) (*object, error) {
	e, err := elf.Open(f.host(path))
	if err != nil {
		return nil, err
	}
	defer func() { _ = e.Close() }()
	o := &object{path: path, class: e.Class, machine: e.Machine}
	dynamic := false
	for _, p := range e.Progs {
		switch p.Type {
		case elf.PT_INTERP:
			b, err := io.ReadAll(io.LimitReader(p.Open(), maxPath))
			if err != nil {
				return nil, fmt.Errorf("%s: interpreter: %w", path, err)
			}
			o.interp = strings.TrimRight(string(b), "\x00")
		case elf.PT_DYNAMIC:
			dynamic = true
		}
	}
	if dynamic && e.SectionByType(elf.SHT_DYNAMIC) == nil {
		return nil,
			fmt.Errorf("%s: its section headers were stripped: its libraries cannot be found: copy them yourself, and link "+
				"it statically or keep the headers", path)
	}
	strs := func(tag elf.DynTag) []string {
		list, serr := e.DynString(tag)
		err = errors.Join(err, serr)
		return list
	}
	o.needed = strs(elf.DT_NEEDED)
	o.soname = strings.Join(strs(elf.DT_SONAME), "")
	o.rpath, o.runpath = o.search(strs(elf.DT_RPATH)), o.search(strs(elf.DT_RUNPATH))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return o, nil
}

// search returns the absolute directories in values of DT_RPATH or DT_RUNPATH, with their tokens replaced (ld.so(8),
// "Dynamic string tokens").
func (o *object) search(values []string) (dirs []string) {
	origin, machine := filepath.Dir(o.path), platform(o.machine)
	for dir := range strings.SplitSeq(strings.Join(values, ":"), ":") {
		for _, lib := range o.libDirs() {
			d := strings.NewReplacer("${ORIGIN}", origin, "$ORIGIN", origin, "${LIB}", lib, "$LIB", lib,
				"${PLATFORM}", machine, "$PLATFORM", machine).Replace(dir)
			if filepath.IsAbs(d) && !slices.Contains(dirs, d) {
				dirs = append(dirs, d)
			}
		}
	}
	return dirs
}

// libDirs returns values that $LIB may have: it differs between distributions.
func (o *object) libDirs() []string {
	switch {
	case o.machine == elf.EM_X86_64:
		return []string{"lib/x86_64-linux-gnu", "lib64", "lib"}
	case o.class == elf.ELFCLASS64:
		return []string{"lib64", "lib"}
	}
	return []string{"lib/i386-linux-gnu", "lib"}
}

func platform(m elf.Machine) string {
	if m == elf.EM_X86_64 {
		return "x86_64"
	}
	return "i686"
}

func (f Finder) systemDirs(o *object) (dirs []string) {
	if name, ok := strings.CutPrefix(filepath.Base(o.interp), "ld-musl-"); ok { // musl's path is in /etc/ld-musl-ARCH.path
		b, err := os.ReadFile(f.host("/etc/ld-musl-" + strings.TrimSuffix(name, ".so.1") + ".path"))
		if err != nil {
			return []string{"/lib", "/usr/local/lib", "/usr/lib"}
		}
		return strings.FieldsFunc(string(b), func(r rune) bool { return r == ':' || r == '\n' })
	}
	dirs = f.conf("/etc/ld.so.conf", 0)
	for _, lib := range o.libDirs() {
		dirs = append(dirs, "/"+lib, "/usr/"+lib)
	}
	return dirs
}

const maxInclude = 8

// conf returns the absolute directories in a file in the format of /etc/ld.so.conf (ldconfig(8)), and in the files
// that it includes; none if it cannot be read.
func (f Finder) conf(path string, depth int) (dirs []string) {
	b, err := os.ReadFile(f.host(path))
	if err != nil || depth > maxInclude {
		return nil
	}
	for line := range strings.SplitSeq(string(b), "\n") {
		line, _, _ = strings.Cut(line, "#")
		words := strings.Fields(line)
		switch {
		case len(words) == 0:
		case words[0] == "include":
			for _, pattern := range words[1:] {
				if !filepath.IsAbs(pattern) {
					pattern = filepath.Join(filepath.Dir(path), pattern)
				}
				files, _ := filepath.Glob(f.host(pattern))
				for _, file := range files {
					rel, err := filepath.Rel(f.host("/"), file)
					if err == nil {
						dirs = append(dirs, f.conf("/"+rel, depth+1)...)
					}
				}
			}
		case filepath.IsAbs(words[0]):
			dirs = append(dirs, filepath.Clean(words[0]))
		}
	}
	return dirs
}
