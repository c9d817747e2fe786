// Package toolimage makes the image of --tools: a squashfs of Debian packages with their dependencies, and
// the list of their programs. Maintainer scripts do not run; finish replaces the effect of a few.
//
// At most MaxNames names, each of at most MaxName characters. Packages are trusted as far as the archive's
// signature.
//
// The package is not API (README, Stability).
package toolimage
