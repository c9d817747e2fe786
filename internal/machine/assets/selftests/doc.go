// Package selftests makes the squashfs images from which a guest runs the Linux kernel's driver selftests
// (tools/testing/selftests/drivers/net and drivers/net/hw):
//
//   - root: a Debian system with what the tests need, unpacked without maintainer scripts (bundles.go);
//   - tests: the tests, built and installed by the kernel's own Makefiles, without patches; on request a
//     second image, with the patches of patches/ that apply;
//   - changed: on request, a user's scripts, which replace the tests' scripts;
//   - modules: the modules of the guest's kernel, with the list of their dependencies.
//
// The package needs no root privileges, no namespace and no guest: most of its tools are a tree of packages too.
//
// An image has a hash in its name, by which it is found again. For a user's source, the hash covers the paths, sizes
// and times of the parts that the build uses (sourceParts). Change the constant format when the way of making images
// changes.
package selftests
