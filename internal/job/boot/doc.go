// Package boot is `vnic boot`: guests of the user's own. Each has a NIC, GPU memory, and a program
// of the user's that runs in it; all are on one switch, with a gateway. The program's streams are
// this process's, its exit status is the command's.
//
// What there is, and what it is called, is the same with both device models: interface eth0 with
// address Addr4(i) is the kernel's, names resolve, and the device that devmem programs open, with
// the address that they are to give it, is in the environment. On virtio that is a second NIC,
// which the kernel has been made to let go of; on gve it is eth0 itself.
package boot
