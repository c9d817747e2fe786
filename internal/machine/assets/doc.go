// Package assets finds or fetches the files from which guests boot: a QEMU and a kernel with its
// modules.
//
// Fetch uses what the user names, what is in PATH and what is in the cache, and downloads the rest
// from the machine's own Debian mirror, without root and without touching the system's package
// state. apt resolves and verifies packages; Fetch compares the result with versions.lock, which names
// the versions that the project was tested with. A tree of the cache appears by one rename and does
// not change afterwards; a process that uses one holds it, so that it is not removed. A cache
// contains programs: Fetch refuses it if other users may write it, or if its owner is neither this
// user nor root (trust.go). Look reports what a machine has and lacks.
//
// The package starts no guest. It knows no CLI and prints nothing; messages for the user are in
// results, errors (Missing has the advice), the Progress callback and the injected logger.
//
// The package is not API (README, Stability).
package assets
