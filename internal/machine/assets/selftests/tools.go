package selftests

import (
	"context"
	"path/filepath"
	"strings"

	"vnic.dev/vnic/internal/machine/assets"
)

// toolsBundle is the bundle of the tools that build the tests of a kernel's series, and of the
// tests' source.
func toolsBundle(kernel string) assets.Bundle {
	return assets.Bundle{Name: assets.BundleTools, Series: Series(kernel), Want: kernel,
		Packages: []string{"linux-source-" + Series(kernel), "gcc", "libc6-dev", "make", "clang", "llvm", "lld", "rsync",
			"xz-utils", "patch", "kmod", "python3", "python3-yaml", "squashfs-tools", "libbpf-dev", "libelf-dev", "zlib1g-dev",
			"libnuma-dev", "libmnl-dev", "libcap-dev", "liburing-dev"},
		Build: finishTools, Mark: ".vnic-tools-2", Needs: []string{assets.Loader, "usr/bin/gcc", "usr/bin/mksquashfs",
			"usr/src/linux-source-" + Series(kernel) + ".tar.xz"}}
}

// finishTools makes the programs of a tree run with the tree's loader and libraries.
func finishTools(_ context.Context, root string) error {
	return assets.RunByOwnLoader(root, "usr/bin", "usr/sbin", "usr/libexec", "usr/lib/gcc", "usr/lib/llvm-*/bin")
}

// shims returns wrapper scripts, by command name, that pass the tree's directories to the tools.
// The tools cannot find these directories themselves, because the running program is the loader.
func shims(tools string) map[string]string {
	clang, _ := filepath.Glob(filepath.Join(tools, "usr/lib/llvm-*/lib/clang/*"))
	resources := strings.Join(clang, " ")
	tool := func(name string) string { return assets.ShellQuote(filepath.Join(tools, "usr/bin", name)) }
	sysroot := " --sysroot=" + assets.ShellQuote(tools)
	return map[string]string{
		"gcc":   "exec " + tool("gcc") + sysroot + " -B " + assets.ShellQuote(filepath.Join(tools, "usr/bin")) + ` "$@"`,
		"clang": "exec " + tool("clang") + sysroot + " -resource-dir " + assets.ShellQuote(resources) + ` "$@"`,
		"python3": "export PYTHONDONTWRITEBYTECODE=1 PYTHONHOME=" + assets.ShellQuote(filepath.Join(tools, "usr")) + "\n" +
			"PYTHONPATH=" + assets.ShellQuote(filepath.Join(tools, "usr/lib/python3/dist-packages")) + ":${0%/*}/python\n" +
			"export PYTHONPATH\nexec " + tool("python3") + ` "$@"`,
	}
}
