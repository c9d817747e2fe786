// Package selftests makes what a guest runs the Linux kernel's driver selftests from
// (tools/testing/selftests/drivers/net and drivers/net/hw): three squashfs images in the cache.
//
//   - root: a Debian system of the kernel's generation, as far as the tests need one: packages unpacked without their
//     maintainer scripts, and the links and users that these would have made, by a list (root.go);
//   - tests: the tests, built and installed by the kernel's own Makefiles, from the source that Debian has of the
//     kernel's series or from a user's tree, at /ks of the root; as they are, and with the patches of patches/ applied;
//   - modules: those of the guest's kernel, with their dependencies worked out.
//
// No root, no namespace and no guest is needed: compilers and the like are a tree of packages too, whose programs run
// by the loader and the libraries that come with them (tools.go).
//
// An image has the hash of all that it was made of in its name: what is there is never made again, and what has changed
// gets a name of its own. A change of how it is made is a change of format.
package selftests
