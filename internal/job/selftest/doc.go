// Package selftest is `vnic selftest`: it runs the Linux kernel's own driver selftests
// (tools/testing/selftests/drivers/net and drivers/net/hw) in a guest, on a NIC of vnic or on one that QEMU
// emulates.
//
// The guest has two NICs, on a switch of vnic's or on a hub of QEMU's. The second NIC is the tests' remote
// end, in a network namespace of its own. With NICs of vnic the guest also has a GPU, for the tests'
// dma-bufs. Before each program setup.sh brings the interfaces into the state of a new device. If the guest has
// ended, or its kernel has made a fatal complaint, such as an oops, the next program gets a freshly booted
// guest.
//
// Packages below: ktap parses the programs' output, splat finds the kernel's complaints on its console,
// results has the types of a run's results, expect compares them with expected results, and report prints
// them.
package selftest
