// Package selftest is `vnic selftest`: it runs the Linux kernel's own driver selftests
// (tools/testing/selftests/drivers/net and drivers/net/hw) in a guest, on a NIC of vnic or on one that QEMU
// emulates.
//
// The guest has two NICs, on a switch of vnic's or on a hub of QEMU's. The second NIC is the tests' remote
// end, in a network namespace of its own. With NICs of vnic the guest also has a GPU, for the tests'
// dma-bufs. Before each program setup.sh brings the interfaces into the state of a new device. A later program gets
// a freshly booted guest if the guest ended during the program before, if its kernel then made a fatal complaint,
// such as an oops, or if the later program needs NICs with another maximum MTU.
//
// Packages below: ktap parses the programs' output, splat finds the kernel's complaints in the console's output,
// results has the types of a run's results, expect compares results with expected ones, and report prints
// results.
package selftest
