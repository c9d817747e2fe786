// Package kerneltest runs the conformance suite of package devmem (devmemtest) over Linux's own device memory TCP, on a
// machine whose interface under test is wired to a second interface, which it takes for the peer: it moves that to a
// network namespace of its own, so that traffic between the two really passes both.
//
// It is a program (devmem-conformance) rather than a Go test, for guests and test machines that have no Go.
//
// The package is not API (README, Stability).
package kerneltest
