package guestimages

import (
	"bytes"
	"fmt"
	"os"
	"strings"
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
	case unknownPack(path[strings.LastIndexByte(path, '.'):]):
		_, err = readModule(name, path)
		return nil, fmt.Errorf("module %s: %s: %w: %w", name, path, ErrBadModule, err)
	}
	m := &ModuleFile{Path: path}
	packed, err := os.ReadFile(path)
	if err == nil {
		m.content, err = decompress(packed)
	}
	if err == nil {
		_, m.Release, err = moduleInfo(m.content)
	}
	if err != nil {
		return nil, fmt.Errorf("module %s: %s: %w: %w", name, path, ErrBadModule, err)
	}
	return m, nil
}

// Names reports whether the module's string table has a symbol, defined or imported. A loadable
// module's table has all imported symbols.
func (m *ModuleFile) Names(symbol string) bool {
	return bytes.Contains(m.content, []byte("\x00"+symbol+"\x00"))
}
