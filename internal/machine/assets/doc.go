// Package assets finds or fetches the files from which guests boot: a QEMU and a kernel with its
// modules.
//
// Fetch uses the files that the user names, the QEMU in PATH and the files in the cache, and downloads
// the rest from a Debian mirror, by default the machine's own, without root and without touching the
// system's package state. apt resolves and verifies packages; Fetch compares the result with
// versions.lock, which names the versions that the project was tested with. A tree of the cache appears
// by one rename and does not change afterwards, except that a kernel's may get its vmlinux later. A
// process that uses a tree holds it, so that no other process removes it. A cache contains programs:
// Fetch refuses a cache that other users may write, or whose owner is neither this user nor root
// (trust.go). Look reports what a machine has and lacks.
//
// The package starts no guest, has no command line and prints nothing; messages for the user are in
// results, errors (Missing has the advice), the Progress callback and the injected logger.
//
// The package is not API (README, Stability).
package assets
