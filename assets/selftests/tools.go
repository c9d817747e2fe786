package selftests

import (
	"context"
	"debug/elf"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"vnic.dev/vnic/assets"
)

// toolsMark says by which version of this package tools were made ready.
const toolsMark = ".vnic-tools-2"

// toolsBundle is what builds the tests of a kernel's series, with their source.
func toolsBundle(kernel string) assets.Bundle {
	return assets.Bundle{Name: assets.BundleTools, Series: Series(kernel), Want: kernel,
		Packages: []string{"linux-source-" + Series(kernel), "gcc", "libc6-dev", "make", "clang", "llvm", "lld", "rsync",
			"xz-utils", "patch", "kmod", "python3", "python3-yaml", "squashfs-tools", "libbpf-dev", "libelf-dev", "zlib1g-dev",
			"libnuma-dev", "libmnl-dev", "libcap-dev", "liburing-dev"},
		Build: finishTools, Needs: []string{toolsMark, assets.Loader, "usr/bin/gcc", "usr/bin/mksquashfs",
			"usr/src/linux-source-" + Series(kernel) + ".tar.xz"}}
}

// finishTools has all programs of a tree run by its own loader and libraries: each becomes a script that says so,
// beside the program. Compilers call other programs of their own by path, so the scripts are where these were.
func finishTools(_ context.Context, root string) error {
	if err := assets.MergeUsr(root); err != nil {
		return err
	}
	var programs []string
	dirs, _ := filepath.Glob(filepath.Join(root, "usr/lib/llvm-*/bin"))
	for _, dir := range []string{"usr/bin", "usr/sbin", "usr/libexec", "usr/lib/gcc"} {
		if _, err := os.Stat(filepath.Join(root, dir)); err == nil {
			dirs = append(dirs, filepath.Join(root, dir))
		}
	}
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
			if err != nil || !e.Type().IsRegular() {
				return err
			}
			st, err := e.Info()
			// A library may be a program, too.
			if err == nil && st.Mode()&0o111 != 0 && dynamic(path) && !strings.Contains(filepath.Base(path), ".so") {
				programs = append(programs, path)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	for _, p := range programs {
		if err := os.Rename(p, p+".real"); err != nil {
			return err
		}
		if err := os.WriteFile(p, []byte(script), 0o755); err != nil {
			return err
		}
	}
	if len(programs) == 0 {
		return fmt.Errorf("%s: no programs among the tools", root)
	}
	return os.WriteFile(filepath.Join(root, toolsMark), nil, 0o644)
}

// script runs the program beside it. The tree may lie anywhere, and be moved; a link may lead to the script.
var script = `#!/bin/sh
self=$(readlink -f "$0")
libs=${self%/usr/*}/` + assets.Libraries + `
exec "$libs/` + filepath.Base(assets.Loader) + `" --library-path "$libs" --argv0 "$0" "$self.real" "$@"
`

// dynamic says whether a file is a program that names glibc's loader.
func dynamic(path string) bool {
	f, err := elf.Open(path)
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }()
	return slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP })
}

// shims are commands, by their names, that find what belongs to the tree at places that they could not work out
// themselves, as what runs is the loader.
func shims(tools string) map[string]string {
	clang, _ := filepath.Glob(filepath.Join(tools, "usr/lib/llvm-*/lib/clang/*"))
	resources := strings.Join(clang, " ")
	at := func(name string) string { return shellQuote(filepath.Join(tools, "usr/bin", name)) }
	sysroot := " --sysroot=" + shellQuote(tools)
	return map[string]string{
		"gcc": "exec " + at("gcc") + sysroot + " -B " + shellQuote(filepath.Join(tools, "usr/bin")) + ` "$@"`,
		"clang": "exec " + at("clang") + sysroot + " -resource-dir " + shellQuote(resources) +
			` "$@"`,
		"python3": "export PYTHONDONTWRITEBYTECODE=1 PYTHONHOME=" + shellQuote(filepath.Join(tools, "usr")) + "\n" +
			"PYTHONPATH=" + shellQuote(filepath.Join(tools, "usr/lib/python3/dist-packages")) + ":${0%/*}/python\n" +
			"export PYTHONPATH\nexec " + at("python3") + ` "$@"`,
	}
}

func shellQuote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
