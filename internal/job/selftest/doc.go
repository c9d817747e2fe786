// Package selftest is what `vnic selftest` does: it runs the Linux kernel's own driver selftests
// (tools/testing/selftests/drivers/net and drivers/net/hw) in a guest, on a NIC of vnic's or on one that QEMU has.
//
// The guest has two NICs on one switch, the second of them in a network namespace of its own as the tests' remote end;
// and of a kernel that has devmem TCP a GPU, whose memory the tests' dma-bufs are of. Each program finds the interfaces
// as their driver leaves them when it takes a device: what the program before left behind is gone (setup.sh). After an
// oops or a panic the next program gets a fresh boot.
//
// Packages below it: ktap reads what programs print, splat what the kernel complains about, results are what came of a
// run, expect what was expected of it, report how it is shown.
//
// Costs: a program has Options.Timeout at most, and what it prints is bounded by ktap; the guest has 2 GiB of memory.
package selftest
