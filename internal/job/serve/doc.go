// Package serve is `vnic serve`: NICs for QEMUs that others start, by QEMU's conventions for backend programs
// (docs/interop/vhost-user.rst, "Backend program conventions").
//
// Each port has a socket: one that we listen at (the default), one that QEMU listens at (client
// mode), or one that we were started with. A QEMU that hangs up is followed by the next one. One
// QEMU at a time has a port: a second one is refused, with a message, unless the first goes away
// within a moment. A process that connects and hangs up without a word, as one does that only looks whether
// the socket is served, is not noticed.
//
// A socket is our user's: its mode is 0600 whatever the umask, so QEMU runs as the same user, or as
// root. With a group its mode is 0660, and QEMUs of the group's users come in, too (package access).
//
// What is said of a port, notes and log from warnings on, is at most 100 lines at once and then one a second; how many
// were left out is said with the next.
//
// A socket's file that a dead process has left is replaced, one that a process listens at is not.
// While that is found out the directory is locked, so that of two that start at once one wins. At
// the end, our files are removed, if they are still ours.
//
// GPU memory is a memfd, which QEMU opens as /proc/PID/fd/N: a process of the same user may. There
// is no link to that in the file system, as QEMU takes one that leads nowhere for a file in the
// making, and looks for it for ever (system/physmem.c, file_ram_open; seen with 11.1.2): whoever
// starts QEMU before us gets an error instead. A group's users get a descriptor from one more socket
// for each GPU, beside its port's (package gpufd). A QEMU that lives on while vnic is started anew
// comes back by itself, with the memory of the GPU that is gone. Nothing can tell its guest; the
// user is warned (hasOldGPU).
//
// With a Broker the process that serves is confined, once all is there and before a connection is taken: what
// needs more rights the broker does from then on (package broker).
package serve
