// Package qemu starts machines from a QEMU and a guest kernel, and clears up after them.
//
// Start runs one QEMU: guest RAM and GPU memory are the caller's memfds, the initramfs, the
// consoles, the results channel and QMP travel by descriptor, so that nothing of a run lies in the
// file system. Close, or the death of this process, ends QEMU. Doctor says what this machine has
// and lacks for that.
//
// Where QEMU and kernel come from is package assets' business, and processes are internal/proc's.
// The package does not know what the guest does: that is guest-images. It knows no CLI and prints
// nothing; facts for a user travel in results, errors and the injected logger.
//
// The package is not API (README, Stability).
package qemu
