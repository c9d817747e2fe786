// Package results has the results of a run of the kernel's driver selftests: programs, their cases, the
// kernel's complaints meanwhile, and the host's counters of payload. Run and the types in it are also the JSON of
// `vnic selftest --json`: the names of their JSON fields are API.
//
// Text from the guest is clean: without control characters (ktap.Clean, agent.Plain).
package results
