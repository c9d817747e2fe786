// Package serve is `vnic serve`: it serves NICs to QEMUs that the user starts, by QEMU's conventions for backend
// programs (docs/interop/vhost-user.rst, "Backend program conventions").
//
// Each port has a socket: one at which vnic listens (the default), one at which QEMU listens (client mode), or one
// that vnic inherited as a descriptor. When a QEMU hangs up, the port serves the next one, unless it inherited a
// connection. It serves one QEMU at a time: it refuses a second one, with a message, unless the first hangs up within
// limits.Takeover. It ignores a connection that ends before it has sent a byte, which is how a process checks whether
// the socket is served.
//
// A socket that vnic makes belongs to vnic's user: its mode is 0600 whatever the umask, so QEMU must run as the same
// user, or as root. With Options.Group its mode is 0660, and QEMUs of the group's members may connect too (package
// access).
//
// Notes about a port's connections, and log messages of level warning and above, are limited to 100 lines at once and
// then one a second; the next line after a gap says how many lines were left out.
//
// vnic replaces a socket's file that no process listens at any more; a file that a process listens at is
// an error. vnic locks the directory, if it can (lockDir), while it makes the socket, so that of two vnics
// that start at the same time one gets the name. At the end vnic removes the files that it made, unless
// somebody has replaced them.
//
// GPU memory is a memfd, which QEMU opens as /proc/PID/fd/N: a process of the same user may do so. No symbolic link
// in the file system leads there: QEMU takes a dangling link for a file that is being made, and looks for it for ever
// (system/physmem.c, file_ram_open; seen with 11.1.2). Without a link, a QEMU that is started before vnic gets an
// error instead. Members of a group get a descriptor from one more socket for each GPU, beside the port's socket
// (package gpufd). When vnic is restarted, a QEMU with virtio NICs that still runs connects again by itself, but it has
// mapped the memory of the earlier vnic's GPU. vnic cannot tell the guest; it warns the user (port.connected).
//
// With a Broker vnic enters its sandbox once all sockets are open and before it accepts a connection; then the broker
// does what needs more rights (package broker).
package serve
