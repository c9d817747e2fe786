// Package boot is `vnic boot`: it boots guests, and runs a program of the user's in each. By default
// each guest has a NIC and GPU memory, and all are on one switch, with a gateway. With one guest the
// program's streams are this process's, and the command's exit status is the program's.
//
// Guests look the same with both device models: the kernel has interface eth0 with address
// lab.Addr4(i), names resolve, and environment variables name the device that devmem programs open
// and the address that they give it. On virtio that device is a second NIC, from which the kernel's
// driver has been unbound; on gve it is eth0 itself.
package boot
