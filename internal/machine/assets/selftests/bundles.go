package selftests

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"vnic.dev/vnic/internal/machine/assets"
)

// rootPackages have the programs and libraries that the tests need (tools/testing/selftests/drivers/net, README.rst
// and lib/py), and a Debian system's basic ones. Packages come from the suite in which the first one's version is
// nearest to the kernel's.
var rootPackages = []string{"iproute2", "ethtool", "python3", "python3-yaml", "python3-jsonschema", "socat", "kmod",
	"iputils-ping", "procps", "jq", "tcpdump", "netcat-openbsd", "iperf3", "psmisc", "util-linux", "mount", "hostname",
	"ndisc6", "nftables", "bpftool", "liburing2", "libbpf1", "libnuma1", "libcap2", "libelf1t64", "libmnl0", "zlib1g",
	"base-files", "bash", "dash", "coreutils", "grep", "sed", "gawk", "findutils", "debianutils", "login.defs"}

func rootBundle(kernel string) assets.Bundle {
	return assets.Bundle{Name: assets.BundleTests, Series: Series(kernel), Packages: rootPackages, Want: kernel,
		Build: finishRoot, Mark: ".vnic-root-1", Needs: []string{assets.Loader, "usr/bin/python3", "usr/bin/ip"}}
}

// finishRoot merges /usr and compiles Python's modules, in place of maintainer scripts.
func finishRoot(ctx context.Context, root string) error {
	if err := assets.MergeUsr(root); err != nil {
		return err
	}
	return assets.CompilePython(ctx, root)
}

// rootFiles returns directories, files and links as mksquashfs's pseudo files (squashfs-tools, USAGE-MKSQUASHFS,
// "Pseudo file definitions").
func rootFiles() string {
	var b strings.Builder
	dir := func(names ...string) {
		for _, n := range names {
			fmt.Fprintf(&b, "%s D 0 755 0 0\n", n)
		}
	}
	link := func(name, to string) { fmt.Fprintf(&b, "%s S 0 777 0 0 %s\n", name, to) }
	file := func(name string, lines ...string) {
		fmt.Fprintf(&b, "%s F 0 644 0 0 printf '%%s\\n' '%s'\n", name, strings.Join(lines, "' '"))
	}
	dir("ks", "vnic", "proc", "sys", "dev", "run", "tmp", "root", "mnt", "usr/lib/modules", "var/lib", "var/tmp",
		"etc/iproute2")
	file("etc/passwd", "root:x:0:0:root:/root:/bin/bash", "nobody:x:65534:65534:nobody:/:/usr/sbin/nologin",
		"tcpdump:x:100:100::/:/usr/sbin/nologin") // the user to which tcpdump drops its privileges
	file("etc/group", "root:x:0:", "nogroup:x:65534:", "tcpdump:x:100:")
	file("etc/hosts", "127.0.0.1 localhost", "::1 localhost")
	file("etc/nsswitch.conf", "passwd: files", "group: files", "hosts: files", "protocols: files", "services: files")
	link("usr/bin/awk", "gawk") // as update-alternatives would
	link("usr/bin/nc", "nc.openbsd")
	return b.String()
}

// toolsBundle returns the bundle of the tools that build the tests of a kernel's series, and of that series' source.
func toolsBundle(kernel string) assets.Bundle {
	return assets.Bundle{Name: assets.BundleTools, Series: Series(kernel), Want: kernel,
		Packages: []string{"linux-source-" + Series(kernel), "gcc", "libc6-dev", "make", "clang", "llvm", "lld", "rsync",
			"xz-utils", "patch", "kmod", "python3", "python3-yaml", "squashfs-tools", "libbpf-dev", "libelf-dev", "zlib1g-dev",
			"libnuma-dev", "libmnl-dev", "libcap-dev", "liburing-dev"},
		Build: finishTools, Mark: ".vnic-tools-2", Needs: []string{assets.Loader, "usr/bin/gcc", "usr/bin/mksquashfs",
			"usr/src/linux-source-" + Series(kernel) + ".tar.xz"}}
}

// finishTools makes the dynamic programs in these directories of a tree run with its own loader and libraries.
func finishTools(_ context.Context, root string) error {
	return assets.RunByOwnLoader(root, "usr/bin", "usr/sbin", "usr/libexec", "usr/lib/gcc", "usr/lib/llvm-*/bin")
}

// shims returns the text of wrapper scripts, without the #! line, by command name. The scripts name the tree's
// directories, which the tools do not find by themselves: the program that the kernel starts is the loader.
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
