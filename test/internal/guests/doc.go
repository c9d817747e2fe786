// Package guests is the one place where `make test` boots guests: a lab that is booted once, on
// which many subtests run one after another, and commands of vnic that boot guests.
//
//   - TestKernelsDrivers: the kernel's own drivers on both models, and the user-space driver, in two guests.
//   - TestCommands: the program vnic from end to end.
//
// The package has only tests.
package guests
