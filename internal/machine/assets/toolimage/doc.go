// Package toolimage makes what --tools puts into guests: an image (squashfs) of Debian packages with all that they
// need, and the list of their programs. Packages are fetched as the kernel and QEMU are, into the same cache, and
// unpacked; no maintainer script of theirs is run, but for what Finish does in place of a few. An image is kept for
// each set of packages, and made once; internal/guesttools is the other end, in the guest.
//
// What a name costs: at most MaxNames of them, each of MaxName characters; the archive's answer says how many bytes are
// downloaded, which the caller hears before, and the cache has to have six times as much free. Names are the user's;
// packages are believed as far as the archive's signature goes.
//
// The package is not API (README, Stability).
package toolimage
