// Package vfiotest is a small vfio-user client for tests: it drives a device as QEMU does, without
// QEMU. It encodes its messages itself, so that it does not repeat a mistake of package vfiouser.
// Its functions return errors, and do not use testing.T.
//
// The package is not API (README, Stability).
package vfiotest
