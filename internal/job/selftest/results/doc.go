// Package results has the results of a run of the kernel's driver selftests: programs, their cases, the
// kernel's complaints meanwhile, and the host's counters of payload. Its types are also the JSON of `vnic
// selftest`: names of fields are API.
//
// Text from the guest is clean (ktap.Clean).
package results
