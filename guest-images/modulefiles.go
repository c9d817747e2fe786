package guestimages

import (
	"fmt"
	"slices"
)

// ModuleFiles gives the files of a kernel's modules and of what they need, in a kernel's module directory: what Build
// reads of it. One that is built in has no file. Its error may be ErrNoModule or ErrBadModule.
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
