package selftests

import (
	"context"
	"os"
	"path/filepath"
	"strings"

	"vnic.dev/vnic/internal/machine/assets"
)

// toolsMark is the file that shows that this version of the package has prepared the tools.
const toolsMark = ".vnic-tools-2"

// toolsBundle is the bundle of the tools that build the tests of a kernel's series, and of the
// tests' source.
func toolsBundle(kernel string) assets.Bundle {
	return assets.Bundle{Name: assets.BundleTools, Series: Series(kernel), Want: kernel,
		Packages: []string{"linux-source-" + Series(kernel), "gcc", "libc6-dev", "make", "clang", "llvm", "lld", "rsync",
			"xz-utils", "patch", "kmod", "python3", "python3-yaml", "squashfs-tools", "libbpf-dev", "libelf-dev", "zlib1g-dev",
			"libnuma-dev", "libmnl-dev", "libcap-dev", "liburing-dev"},
		Build: finishTools, Needs: []string{toolsMark, assets.Loader, "usr/bin/gcc", "usr/bin/mksquashfs",
			"usr/src/linux-source-" + Series(kernel) + ".tar.xz"}}
}

// finishTools makes the programs of a tree run with the tree's loader and libraries.
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

// shims returns wrapper scripts, by command name, that pass the tree's directories to the tools.
// The tools cannot find these directories themselves, because the running program is the loader.
func shims(tools string) map[string]string {
	clang, _ := filepath.Glob(filepath.Join(tools, "usr/lib/llvm-*/lib/clang/*"))
	resources := strings.Join(clang, " ")
	tool := func(name string) string { return shellQuote(filepath.Join(tools, "usr/bin", name)) }
	sysroot := " --sysroot=" + shellQuote(tools)
	return map[string]string{
		"gcc": "exec " + tool("gcc") + sysroot + " -B " + shellQuote(filepath.Join(tools, "usr/bin")) + ` "$@"`,
		"clang": "exec " + tool("clang") + sysroot + " -resource-dir " + shellQuote(resources) +
			` "$@"`,
		"python3": "export PYTHONDONTWRITEBYTECODE=1 PYTHONHOME=" + shellQuote(filepath.Join(tools, "usr")) + "\n" +
			"PYTHONPATH=" + shellQuote(filepath.Join(tools, "usr/lib/python3/dist-packages")) + ":${0%/*}/python\n" +
			"export PYTHONPATH\nexec " + tool("python3") + ` "$@"`,
	}
}

func shellQuote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
