// Package assets finds or fetches a QEMU, and a kernel with its modules.
//
// Fetch uses files that the user names, the QEMU in PATH and the cache, and downloads the rest from a Debian
// mirror, without root and without the system's package state. apt resolves and verifies packages;
// versions.lock names the tested versions. A process that uses a tree holds it, so RemoveCached does not remove it.
// As a cache contains programs, Fetch refuses one that users other than this one and root own or may write (trust.go).
// Look reports what a machine has and lacks.
//
// The package starts no guest and prints nothing. Missing has advice for the user.
//
// The package is not API (README, Stability).
package assets
