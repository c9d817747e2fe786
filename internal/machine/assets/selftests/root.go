package selftests

import (
	"context"
	"fmt"
	"strings"

	"vnic.dev/vnic/internal/machine/assets"
)

// rootPackages are the programs that the tests call, in addition to the programs of every Debian system
// (README.rst of drivers/net; lib/py). The first one belongs to the kernel's generation: its
// version decides which suite is the best.
var rootPackages = []string{"iproute2", "ethtool", "python3", "python3-yaml", "python3-jsonschema", "socat", "kmod",
	"iputils-ping", "procps", "jq", "tcpdump", "netcat-openbsd", "iperf3", "psmisc", "util-linux", "mount", "hostname",
	"ndisc6", "nftables", "bpftool", "liburing2", "libbpf1", "libnuma1", "libcap2", "libelf1t64", "libmnl0", "zlib1g",
	"base-files", "bash", "dash", "coreutils", "grep", "sed", "gawk", "findutils", "debianutils", "login.defs"}

func rootBundle(kernel string) assets.Bundle {
	return assets.Bundle{Name: assets.BundleTests, Series: Series(kernel), Packages: rootPackages, Want: kernel,
		Build: finishRoot, Mark: ".vnic-root-1", Needs: []string{assets.Loader, "usr/bin/python3", "usr/bin/ip"}}
}

// finishRoot does what dpkg and maintainer scripts would have done to the root's files: links of a
// merged /usr that the packages lack, and Python's compiled modules.
func finishRoot(ctx context.Context, root string) error {
	if err := assets.MergeUsr(root); err != nil {
		return err
	}
	return assets.CompilePython(ctx, root)
}

// rootFiles returns the files that maintainer scripts and an administrator would have made, as
// mksquashfs's pseudo files (squashfs-tools, USAGE-MKSQUASHFS, "Pseudo file definitions"). Some
// directories are only mount points.
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
		"tcpdump:x:100:100::/:/usr/sbin/nologin") // tcpdump drops its privileges to this user
	file("etc/group", "root:x:0:", "nogroup:x:65534:", "tcpdump:x:100:")
	file("etc/hosts", "127.0.0.1 localhost", "::1 localhost")
	file("etc/nsswitch.conf", "passwd: files", "group: files", "hosts: files", "protocols: files", "services: files")
	link("usr/bin/awk", "gawk") // as update-alternatives would
	link("usr/bin/nc", "nc.openbsd")
	return b.String()
}
