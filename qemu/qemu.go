// Package qemu finds or fetches QEMU and a guest kernel, starts machines from them, and clears up after them.
//
// Fetch takes QEMU and a Debian cloud kernel from the machine's own package mirror, without root and without touching
// the system's package state, into a cache. Start runs one QEMU: guest RAM and GPU memory are the caller's memfds, the
// initramfs, the consoles, the results channel and QMP travel by descriptor, so that nothing of a run lies in the file
// system. Close, or the death of this process, ends QEMU.
//
// The package does not know what the guest does: that is guest-images. It knows no CLI and prints nothing; facts for a
// user travel in results, errors, the Progress callback and the injected logger.
//
// The package is not API (README, Stability).
package qemu
