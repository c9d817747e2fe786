// Package boot is `vnic boot`: it boots guests, and runs a program of the user's, or a shell, in each. By default each
// guest has GPU memory, and all are on one switch, with a gateway. With one guest the program's streams are
// this process's. For `vnic image build` it makes an Image.
//
// Without a lab file guests look the same with both device models: names resolve, the kernel has interface
// eth0, and environment variables name the device and the address for devmem programs. On virtio that device
// is a second NIC, without a driver of the kernel; on gve it is eth0 itself.
package boot
