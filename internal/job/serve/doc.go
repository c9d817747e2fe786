// Package serve is `vnic serve`: it serves NICs to QEMUs that the user starts, by QEMU's conventions for
// backend programs (docs/interop/vhost-user.rst, "Backend program conventions").
//
// Each port has a socket: one at which vnic listens (the default), one at which QEMU listens (client mode),
// or one that vnic inherited as a descriptor. A port serves one QEMU at a time, and refuses a second one
// unless the first hangs up within limits.Takeover. It closes a connection that ends, or is silent for
// limits.Connected, before its first byte: processes connect and hang up to check whether the socket is served.
//
// The mode of a socket that vnic makes is 0600 whatever the umask, so QEMU must run as the same user, or as
// root. With Options.Group it is 0660, and members of the group may connect too (package access). At the end
// vnic removes the files that it made, unless they were replaced.
//
// GPU memory is a memfd, which QEMU opens as /proc/PID/fd/N. No symbolic link leads there: QEMU takes a
// dangling link for a file that is being made, and looks for it for ever (system/physmem.c, file_ram_open;
// seen with 11.1.2). With Options.Group, members of the group get a descriptor from one more socket for each GPU
// (package gpufd). When vnic is restarted, a QEMU with virtio NICs that still runs connects again. If it has a GPU, it
// has mapped the memory of the earlier vnic's GPU: vnic warns the user (port.connected).
//
// Do calls Options.Confine, if it is set, once vnic's sockets are open: vnic enters its sandbox. From then on
// Options.Broker does what needs more rights (package broker).
package serve
