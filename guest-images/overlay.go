package guestimages

import (
	"debug/elf"
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

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/elfdeps"
	"vnic.dev/vnic/internal/newc"
)

// ErrTooMuch means that files do not fit into a guest's memory, or that they are too many.
var ErrTooMuch = errors.New("too much for the guest's memory")

const maxFiles = 100_000

// Overlay is an archive of a user's files, which the guest's kernel unpacks over an image. Copy and Program add the ELF
// interpreter and libraries of dynamic programs, at the same paths as on this machine. Write reads the files' content.
// One goroutine at a time may use an Overlay.
type Overlay struct {
	Notes []string // messages for the user

	files map[string]overlayFile // by guest path without the first slash
	bytes uint64
	find  elfdeps.Finder
	named []string // guest paths of the files, without directories, that were passed to Copy
}

type overlayFile struct {
	newc.File
	from string // path on this machine; "": no file of this machine
}

// NewOverlay returns an empty overlay, which looks for libraries also in the present $LD_LIBRARY_PATH.
func NewOverlay() *Overlay {
	return &Overlay{files: map[string]overlayFile{},
		find: elfdeps.Finder{LibraryPath: filepath.SplitList(os.Getenv("LD_LIBRARY_PATH"))}}
}

// Bytes returns the sum of the sizes that the copied regular files had, at most 2^62.
func (o *Overlay) Bytes() uint64 { return o.bytes }

// hidden are paths of a guest where other file systems or vnic's files are: guestPath refuses them and all below them.
var hidden = []string{"/proc", "/sys", "/dev", "/init", "/vnic"}

func guestPath(p string) (string, error) {
	if !path.IsAbs(p) || strings.ContainsRune(p, 0) {
		return "", fmt.Errorf("%q is no absolute path in the guest", p)
	}
	p = path.Clean(p)
	for _, h := range hidden {
		if p == h || strings.HasPrefix(p, h+"/") {
			return "", fmt.Errorf("%s: files cannot be put below %s of the guest", p, h)
		}
	}
	return p, nil
}

// Has reports whether a file, link or directory was added at a guest path.
func (o *Overlay) Has(guest string) bool {
	_, ok := o.files[strings.TrimPrefix(path.Clean(guest), "/")]
	return ok
}

// Text adds a file with this text, unless the path is taken.
func (o *Overlay) Text(guest, text string) {
	o.put(guest, newc.Text("", text, 0o644), "")
}

// Link adds a symbolic link to target at a guest path, unless the path is taken.
func (o *Overlay) Link(guest, target string) { o.put(guest, newc.Link("", target), "") }

// Dir adds a directory, unless the path is taken.
func (o *Overlay) Dir(guest string) { o.put(guest, newc.Dir("", 0o755), "") }

// put adds a file, link or directory, unless the path is taken or is the root.
func (o *Overlay) put(guest string, f newc.File, from string) {
	f.Name = strings.TrimPrefix(path.Clean(guest), "/")
	if _, ok := o.files[f.Name]; !ok && f.Name != "" {
		o.files[f.Name] = overlayFile{f, from}
	}
}

// Copy adds a file or a directory of this machine, with its permissions. It follows host if host is a link, and copies
// the links in a directory as links.
func (o *Overlay) Copy(host, guest string) error {
	guest, err := guestPath(guest)
	if err != nil {
		return err
	}
	st, err := os.Stat(host)
	if err != nil {
		return err
	}
	if !st.IsDir() {
		o.named = append(o.named, guest)
		return o.file(host, guest, st, needAll)
	}
	return o.copyTree(host, guest, func(string) bool { return false })
}

// copyTree copies a directory without the names that skip matches.
func (o *Overlay) copyTree(host, guest string, skip func(name string) bool) error {
	host, err := filepath.EvalSymlinks(host) // WalkDir does not follow a link as its root
	if err != nil {
		return err
	}
	return filepath.WalkDir(host, func(p string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(host, p)
		if err != nil {
			return err
		}
		to := path.Join(guest, filepath.ToSlash(rel))
		st, err := e.Info()
		if err != nil {
			return err
		}
		switch {
		case p != host && skip(e.Name()) && e.IsDir():
			return filepath.SkipDir
		case p != host && skip(e.Name()):
		case e.IsDir():
			o.put(to, newc.Dir("", uint32(st.Mode().Perm())), p)
		case st.Mode()&fs.ModeSymlink != 0:
			target, err := os.Readlink(p)
			if err != nil {
				return err
			}
			o.put(to, newc.Link("", target), p)
		case st.Mode().IsRegular():
			return o.file(p, to, st, needSome)
		default:
			o.Notes = append(o.Notes, p+" is not copied: neither a file nor a directory")
		}
		return nil
	})
}

// Ours adds a file of vnic's own, also at a path where Copy refuses files. It adds no libraries.
func (o *Overlay) Ours(host, guest string) error {
	st, err := os.Stat(host)
	if err != nil {
		return err
	}
	return o.file(host, path.Clean(guest), st, needNone)
}

// Program adds a program for the guest to run, ELF or a script, with its dependencies.
func (o *Overlay) Program(host, guest string) error { return o.program(host, guest, 0) }

const maxScripts = 4 // how many scripts may follow one another as interpreters (execve(2))

func (o *Overlay) program(host, guest string, depth int) error {
	st, err := os.Stat(host)
	switch {
	case err != nil:
		return err
	case !st.Mode().IsRegular():
		return fmt.Errorf("%s: not a program", host)
	case st.Mode()&0o111 == 0:
		return fmt.Errorf("%s: not executable: chmod +x it", host)
	}
	if done, err := o.withLibrary(host, guest); done || err != nil {
		return err
	}
	line, err := firstLine(host)
	if err != nil {
		return err
	}
	switch {
	case strings.HasPrefix(line, "#!"):
		if err := o.interpreter(host, line, depth); err != nil {
			return err
		}
	case strings.HasPrefix(line, elf.ELFMAG):
		if err := o.runs(host); err != nil {
			return err
		}
	default:
		return fmt.Errorf("%s: neither an ELF program nor a script that names its interpreter", host)
	}
	return o.Copy(host, guest)
}

// runs returns an error if this ELF file is no program or library for x86.
func (o *Overlay) runs(host string) error {
	e, err := elf.Open(host)
	if err != nil {
		return fmt.Errorf("%s: %w", host, err)
	}
	defer func() { _ = e.Close() }()
	if e.Machine != elf.EM_X86_64 && e.Machine != elf.EM_386 || e.Type != elf.ET_EXEC && e.Type != elf.ET_DYN {
		return fmt.Errorf("%s: not a program for the guest, which is x86-64: %v, %v", host, e.Machine, e.Type)
	}
	return nil
}

// needs is which libraries to add with a file; if a library of needAll is missing, that is an error.
type needs int

const (
	needNone needs = iota
	needSome       // the libraries that this machine has
	needAll
)

func (o *Overlay) file(host, guest string, st fs.FileInfo, n needs) error {
	if !st.Mode().IsRegular() {
		return fmt.Errorf("%s: neither a file nor a directory", host)
	}
	name := strings.TrimPrefix(guest, "/")
	if name == "" {
		return fmt.Errorf("%s: a file cannot be the guest's root", host)
	}
	if old, ok := o.files[name]; ok {
		if same(old.from, host) {
			return nil
		}
		return fmt.Errorf("%s and %s: both would be %s in the guest", old.from, host, guest)
	}
	if len(o.files) >= maxFiles {
		return fmt.Errorf("%s: %w: with it there are %d files, and %d is the most", host, ErrTooMuch, len(o.files)+1,
			maxFiles)
	}
	o.bytes = min(o.bytes+uint64(st.Size()), 1<<62) // a sparse file may have any size
	mode := unix.S_IFREG | uint32(st.Mode().Perm())
	for bit, m := range map[fs.FileMode]uint32{fs.ModeSetuid: 0o4000, fs.ModeSetgid: 0o2000, fs.ModeSticky: 0o1000} {
		if st.Mode()&bit != 0 {
			mode |= m
		}
	}
	o.put(guest, newc.File{Mode: mode, Size: st.Size(),
		Open: func() (io.ReadCloser, error) { return os.Open(host) }}, host)
	if n == needNone {
		return nil
	}
	return o.libraries(host, guest, n)
}

func same(a, b string) bool {
	sa, err1 := os.Stat(a)
	sb, err2 := os.Stat(b)
	return err1 == nil && err2 == nil && os.SameFile(sa, sb)
}

// libraries adds the ELF interpreter and libraries of a dynamic program or library. Other files need none.
func (o *Overlay) libraries(host, guest string, need needs) error {
	line, err := firstLine(host)
	if err != nil || !strings.HasPrefix(line, elf.ELFMAG) {
		return err
	}
	libs, err := o.find.Find(host)
	switch {
	case err == nil:
	case need == needAll:
		return err
	case errors.Is(err, elfdeps.ErrMissing):
		o.Notes = append(o.Notes, err.Error())
	}
	for _, lib := range libs {
		if err := o.library(lib, host, guest); err != nil {
			return err
		}
	}
	return nil
}

// library adds a library of a program, and the linker's cache, unless the overlay has them. If the program is in
// another directory than on this machine, and the library not in one of the system, it adds a link where $ORIGIN would
// lead.
func (o *Overlay) library(lib, program, guest string) error {
	if p, err := guestPath(lib); err != nil {
		return err
	} else if !o.Has(p) {
		st, err := os.Stat(lib)
		if err != nil {
			return err
		}
		if err := o.file(lib, p, st, needNone); err != nil {
			return err
		}
	}
	if program, err := filepath.EvalSymlinks(program); err == nil && path.Dir(guest) != filepath.Dir(program) &&
		!ofSystem(lib) {
		if rel, err := filepath.Rel(filepath.Dir(program), lib); err == nil {
			if link, err := guestPath(path.Join(path.Dir(guest), rel)); err == nil {
				o.put(link, newc.Link("", lib), lib)
			}
		}
	}
	// The cache names libraries outside the default directories.
	if cache := "/etc/ld.so.cache"; !o.Has(cache) {
		if st, err := os.Stat(cache); err == nil {
			return o.file(cache, cache, st, needNone)
		}
	}
	return nil
}

// ofSystem reports whether a library is below a directory of the system, where libraries need no $ORIGIN.
func ofSystem(lib string) bool {
	return strings.HasPrefix(lib, "/lib") || strings.HasPrefix(lib, "/usr/lib") || strings.HasPrefix(lib, "/usr/local/lib")
}

// Write adds the missing parent directories, and writes the archive.
func (o *Overlay) Write(w io.Writer) error {
	for _, name := range slices.Collect(maps.Keys(o.files)) {
		for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
			f := newc.Dir("", 0o755)
			if dir == "tmp" {
				f = newc.Dir("", 0o1777)
			}
			o.put(dir, f, "")
		}
	}
	var list []newc.File
	for _, name := range slices.Sorted(maps.Keys(o.files)) { // in this order directories come before their files
		list = append(list, o.files[name].File)
	}
	if _, err := archive(w, list); err != nil {
		return fmt.Errorf("guest's files: %w", err)
	}
	return nil
}
