// Package toolimage makes the image of --tools: a squashfs of Debian packages with their dependencies (but for
// forScripts), and the list of their programs. Maintainer scripts do not run; finish replaces the effect of a few.
//
// --tools has at most MaxNames names, each of at most MaxName characters. Packages are verified by the archive's
// signature only.
//
// The package is not API (README, Stability).
package toolimage
