// Package selftests makes the squashfs images from which a guest runs the Linux kernel's driver selftests
// (tools/testing/selftests/drivers/net and drivers/net/hw):
//
//   - root: a Debian system with what the tests need, unpacked without maintainer scripts (bundles.go);
//   - tests: the tests, built and installed by the kernel's own Makefiles, without patches; on request a
//     second image, with the patches of patches/ that apply;
//   - changed: a user's scripts that replace the tests';
//   - modules: the modules of the guest's kernel, with the list of their dependencies.
//
// The package needs no root privileges, no namespace and no guest: most of its tools are a tree of packages too.
//
// An image has a hash in its name, by which it is found again: of a user's source only tools/testing/selftests
// is in the hash. Change format when the way of making images changes.
package selftests
