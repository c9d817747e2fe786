// Package gpufd passes the memory of a GPU to QEMUs of users other than vnic's.
//
// A GPU's memory is a sealed memfd of vnic. QEMU opens it as /proc/PID/fd/N, which needs the rights of ptrace
// over vnic (proc_pid_fd(5)), as root and processes of the same user have them. A file in /dev/shm that a
// group may open cannot be sealed: whoever shortened it would cause SIGBUS in vnic and in other QEMUs. So
// `vnic serve --socket-group` has a socket for each GPU, and sends a descriptor to each process that connects
// and is admitted: [Server]. The other end is `vnic gpu-fd`: [Receive], and [Exec], which replaces
// `vnic gpu-fd` by QEMU, with the descriptors as 3, 4, and so on.
//
// A message with a descriptor (SCM_RIGHTS) is one byte, 0; a message without one is a text with
// the reason why the process gets none.
//
// A process with the descriptor can read and write the memory. It can neither shrink, grow nor seal it, nor
// run it as a program (MFD_NOEXEC_SEAL, where the kernel has it).
//
// An unreceived descriptor counts as in flight for vnic's user, who may have RLIMIT_NOFILE of them (unix(7),
// ETOOMANYREFS); so the server keeps a connection at least while its descriptor is in flight (SIOCOUTQ), and bounds
// the connections with a descriptor in flight, of one user and in all.
package gpufd
