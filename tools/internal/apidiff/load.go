package main

import (
	"errors"
	"fmt"
	"go/types"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/tools/go/packages"
)

func parse(list string) []string {
	var dirs []string
	for line := range strings.Lines(list) {
		if line, _, _ = strings.Cut(line, "#"); strings.TrimSpace(line) != "" {
			dirs = append(dirs, strings.TrimSpace(line))
		}
	}
	slices.Sort(dirs)
	return slices.Compact(dirs)
}

// load returns, by directory, the types of the packages in dirs of the checkout at root. The parameter module is
// the module's path. load reads the compiler's export data, so the packages must build. It skips directories that do
// not exist.
func load(root, module string, dirs []string, flags ...string) (map[string]*types.Package, error) {
	found := map[string]*types.Package{}
	var patterns []string
	for _, d := range dirs {
		if _, err := os.Stat(filepath.Join(root, d)); err == nil {
			patterns = append(patterns, "./"+d)
		} else if !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
	}
	if len(patterns) == 0 {
		return found, nil
	}
	const mode = packages.NeedName | packages.NeedTypes | packages.NeedTypesSizes | packages.NeedImports
	config := &packages.Config{Mode: mode, Dir: root, BuildFlags: flags, Env: append(os.Environ(), "GOWORK=off")}
	loaded, err := packages.Load(config, patterns...)
	if err != nil {
		return nil, fmt.Errorf("load the API of %s: %w", root, err)
	}
	var broken []error
	packages.Visit(loaded, nil, func(p *packages.Package) {
		for _, err := range p.Errors {
			broken = append(broken, fmt.Errorf("load the API of %s: %s: %w", root, p.PkgPath, err))
		}
	})
	if err := errors.Join(broken...); err != nil {
		return nil, err
	}
	for _, p := range loaded {
		dir, ok := strings.CutPrefix(p.PkgPath, module+"/")
		if !ok || p.Types == nil {
			return nil, fmt.Errorf("load the API of %s: %s is no package of %s", root, p.PkgPath, module)
		}
		found[dir] = p.Types
	}
	return found, nil
}
