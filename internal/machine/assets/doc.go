// Package assets finds or fetches a QEMU, a kernel with its modules, and bundles of other Debian packages.
//
// Fetch uses files that the user names, the QEMU in PATH if it is new enough, and the cache, and downloads the rest
// from a Debian mirror, without root and without the system's package state. apt resolves and verifies packages;
// versions.lock names the tested versions. A process that uses a tree of the cache holds it, so RemoveCached does not
// remove it. As a cache contains programs, Fetch refuses one that users other than this one and root own or may write
// (trust.go, also for exceptions). Look reports what this machine has and lacks.
//
// The package starts no guest and prints nothing. A Missing, which is an error, has advice for the user.
//
// The package is not API (README, Stability).
package assets
