package guestimages

import (
	"fmt"
	"slices"
)

// ModuleFiles returns the files that Build reads from a kernel's module directory for these modules
// and their dependencies. A built-in module has no file. Its error may be ErrNoModule or
// ErrBadModule.
func ModuleFiles(dir string, names []string) (paths []string, err error) {
	mods, err := resolve(dir, "", names)
	if err != nil {
		return nil, err
	}
	index, _, err := scan(dir)
	if err != nil {
		return nil, fmt.Errorf("kernel modules: %w", err)
	}
	for _, m := range mods {
		if path, ok := index[m.name]; ok && m.content != nil && !isOwn(m.name) {
			paths = append(paths, path)
		}
	}
	slices.Sort(paths)
	return paths, nil
}
