package selftests

import (
	"context"
	"os"
	"path/filepath"
	"strings"

	"vnic.dev/vnic/internal/machine/assets"
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

// finishTools makes the programs of a tree run by its own loader and libraries.
func finishTools(_ context.Context, root string) error {
	if err := assets.MergeUsr(root); err != nil {
		return err
	}
	err := assets.RunByOwnLoader(root, "usr/bin", "usr/sbin", "usr/libexec", "usr/lib/gcc", "usr/lib/llvm-*/bin")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(root, toolsMark), nil, 0o644)
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
