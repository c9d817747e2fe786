// Package qemu starts machines from a QEMU and a guest kernel, and cleans up after them.
//
// Start runs one QEMU. Guest RAM is in memfds of this process, GPU memory in files of the caller; QEMU inherits
// descriptors of these files and of its channels, which need no names in the file system. Close, the end of Start's
// context, or the death of this process ends QEMU. Doctor reports what the host has and lacks.
//
// The package has no command line and prints nothing: messages are in results, errors and the injected
// logger.
//
// The package is not API (README, Stability).
package qemu
