// Package assets finds or fetches what guests start from: a QEMU and a kernel with its modules.
//
// Fetch takes what the user gives, what PATH has, what the cache has, and downloads the rest from
// the machine's own Debian mirror, without root and without touching the system's package state.
// apt resolves and verifies; what it says is checked against versions.lock, which names what the
// project was tested with. A tree of the cache appears by one rename and is never changed after
// that; a process that uses one holds it, and it is not removed then. A cache is a directory of programs: one
// that is another user's than this one's or root's, or that others may write, is refused (trust.go).
// Look says what a machine has and lacks.
//
// The package starts no guest. It knows no CLI and prints nothing; facts for a user travel in
// results, errors (Missing says what to do), the Progress callback and the injected logger.
//
// The package is not API (README, Stability).
package assets
