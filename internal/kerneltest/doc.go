// Package kerneltest runs the conformance suite of package devmem (devmemtest) over Linux's own device memory TCP, on a
// machine whose interface under test is wired to a second interface. The suite's peer uses the second interface: Run
// moves it to a new network namespace, so that traffic between the two passes through both interfaces.
//
// Main makes a program of it (devmem-conformance), not a Go test, for guests and test machines that have no Go.
//
// The package is not API (README, Stability).
package kerneltest
