// Package qemu starts machines from a QEMU and a guest kernel, and cleans up after them.
//
// Start runs one QEMU. Guest RAM and GPU memory are memfds of the caller, and QEMU inherits the
// initramfs, the consoles, the results channel and QMP as descriptors, so a run leaves nothing in
// the file system. Close, or the death of this process, ends QEMU. Doctor says what this machine
// has and lacks.
//
// Package assets provides QEMU and kernel, and internal/proc manages processes. Package
// guest-images defines what the guest does. The package has no CLI and prints nothing; messages
// for the user are in results, errors and the injected logger.
//
// The package is not API (README, Stability).
package qemu
