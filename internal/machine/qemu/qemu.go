// Package qemu starts machines from a QEMU and a guest kernel, and cleans up after them.
//
// Start runs one QEMU. Guest RAM and GPU memory are memfds of this process, and QEMU inherits them, the
// initramfs, the console, the results channel and QMP as descriptors, so that none of these has a name in the
// file system. Close, or the death of this process, ends QEMU. Doctor reports what this machine has and
// lacks.
//
// Package assets provides QEMU and kernel, internal/proc manages processes, and package guest-images builds
// the guest's initramfs. Package qemu has no command line and prints nothing; messages for the user are in
// results, errors and the injected logger.
//
// The package is not API (README, Stability).
package qemu
