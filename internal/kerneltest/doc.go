// Package kerneltest runs the conformance suite of package devmem (devmemtest) over Linux's own device memory
// TCP, on an interface that is wired to a second one. Run moves the second interface to a new network
// namespace, so traffic between their addresses passes through both interfaces.
//
// The package is not API (README, Stability).
package kerneltest
