// Package selftests makes the images from which a guest runs the Linux kernel's driver selftests
// (tools/testing/selftests/drivers/net and drivers/net/hw), as squashfs images in the cache:
//
//   - root: a Debian system of the kernel's generation, with only what the tests need: packages
//     unpacked without their maintainer scripts, and the links and users that these would have
//     made, from a list (bundles.go);
//   - tests: the tests, built and installed by the kernel's own Makefiles, from Debian's source of
//     the kernel's series or from a user's tree, at /ks of the root; one image without the patches of
//     patches/ and, if requested, one with them;
//   - changed: a user's files that replace files of the tests, if there are any;
//   - modules: the modules of the guest's kernel, with their dependencies.
//
// The package needs no root privileges, no namespace and no guest: compilers and other tools are a tree of
// packages too, whose programs run with the loader and the libraries of the tree (bundles.go).
//
// An image has a hash of its inputs in its name: an existing image is never made again, and changed
// inputs give a new name. Change format when the way of making images changes.
package selftests
