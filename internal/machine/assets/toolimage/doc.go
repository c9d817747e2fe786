// Package toolimage makes the image that --tools puts into guests: a squashfs of Debian packages
// with their dependencies, and the list of their programs. Package assets fetches the packages like the
// kernel and QEMU, into the same cache, and unpacks them; their maintainer scripts do not run, and finish
// replaces the effect of a few. Each set of packages has one image, made once; if the first package is
// ethtool, one for each series of kernels. internal/guesttools uses the image in the guest.
//
// Bounds: at most MaxNames names, each of at most MaxName characters. The caller learns the size of
// the download in advance, and the cache must have six times as much free space. The user chooses
// the names; packages are trusted as far as the archive's signature.
//
// The package is not API (README, Stability).
package toolimage
