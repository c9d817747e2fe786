// Package results is what a run of the kernel's driver selftests has shown: programs, their cases,
// what the kernel complained about meanwhile, and what the host says of payload. Its types are the
// JSON of `vnic selftest` as well: names of fields are API.
//
// A Recorder makes a Program of a program's output and of the kernel's complaints, as they come.
//
// The package does not know what was expected (package expect), nor how results are shown (package
// report). All text comes from the guest and is clean (ktap.Clean).
package results
