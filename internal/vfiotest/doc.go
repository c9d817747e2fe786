// Package vfiotest is a small vfio-user client: it drives a device as QEMU does, without QEMU, and
// encodes its messages by itself, so that a mistake of package vfiouser is not made twice. It is
// for tests, but reports errors and knows no testing.T.
//
// The package is not API (README, Stability).
package vfiotest
