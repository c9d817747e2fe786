package guestimages

import (
	"bytes"
	"fmt"
	"slices"
)

// ModuleFile is a kernel module, as read from its file.
type ModuleFile struct {
	Path    string // "": built in, without a file
	Release string // of the kernel that it was built for; "" = unknown
	content []byte
}

// FindModule looks for a module in a kernel's module directory. Its error may be ErrNoModule or
// ErrBadModule. It reads the names of all files of the directory, and one file of at most 256 MB.
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
	m, err := readModule(name, path)
	if err == nil && m.ext == zstdModule {
		if err = m.parse(); err != nil {
			err = fmt.Errorf("module %s: %s: %w: %w", name, path, ErrBadModule, err)
		}
	}
	if err != nil {
		return nil, err
	}
	return &ModuleFile{Path: path, Release: m.release, content: m.content}, nil
}

// Names reports whether the module's string table has a symbol, defined or imported. A loadable
// module's table has all imported symbols.
func (m *ModuleFile) Names(symbol string) bool {
	return bytes.Contains(m.content, []byte("\x00"+symbol+"\x00"))
}

// ModuleFiles returns the files that Build reads from a kernel's module directory for these modules
// and their dependencies. A built-in module has no file. Its error may be ErrNoModule or
// ErrBadModule.
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
