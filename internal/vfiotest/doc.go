// Package vfiotest is a small vfio-user client for tests: it drives a device as QEMU does. It encodes its
// messages itself, so that it does not repeat a mistake of package vfiouser.
//
// The package is not API (README, Stability).
package vfiotest
