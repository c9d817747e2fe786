// Package vfiotest is a small vfio-user client for tests. It encodes and decodes messages itself, so that it does not
// repeat mistakes in the encoding of package vfiouser. The numbers of commands and the header's flags are vfiouser's.
//
// The package is not API (README, Stability).
package vfiotest
