// Package selftest is what `vnic selftest` does: it runs the Linux kernel's own driver selftests
// (tools/testing/selftests/drivers/net and drivers/net/hw) in a guest, on a NIC of vnic or on one that QEMU emulates.
//
// The guest has two NICs, on a switch of vnic's or on a hub of QEMU's. The second NIC is the tests' remote end, in a
// network namespace of its own. With NICs of vnic the guest also has a GPU, whose memory the tests' dma-bufs use.
// Before each program setup.sh brings the interfaces into the state in which their driver leaves a new device, and
// undoes changes of earlier programs. After a fatal complaint of the kernel, such as an oops, and if the guest has
// ended, the next program gets a freshly booted guest.
//
// Packages below: ktap parses the programs' output, splat finds the kernel's complaints in its console output,
// results has the types of a run's results, expect compares them with expected results, and report prints them.
//
// Costs: Options.Timeout bounds the time of a program, and ktap how much of its output is kept; the guest has 2 GiB of
// RAM.
package selftest
