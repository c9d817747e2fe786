// Package guests is the one place where `make test` boots guests: a lab that is booted once, on
// which many subtests run one after another, and commands of vnic that boot guests. Tests in other
// packages that boot guests, for example because they remove a NIC or kill a guest, are skipped
// without VNIC_LONG.
//
//   - TestKernelsDrivers: the kernel's own drivers on both models, and the user-space driver, in two
//     guests that live until the end of the test.
//   - TestCommands: the program vnic from end to end.
//
// The package has only tests. At the end they print how many guests they have booted, and fail if there are more than
// limit.
package guests
