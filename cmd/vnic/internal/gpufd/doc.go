// Package gpufd brings the memory of a GPU to QEMUs of other users.
//
// A GPU's memory is a sealed memfd of vnic's. QEMU opens it as /proc/PID/fd/N, which wants the rights of ptrace
// over vnic (proc_pid_fd(5)): a process of the same user has them, and root. A file in /dev/shm that a group may
// open is no way out, as it cannot be sealed: whoever shortened it would have vnic and other QEMUs get SIGBUS.
// So `vnic serve --socket-group` has a socket for each GPU, and gives a descriptor to who connects: Server. The
// other end is `vnic gpu-fd`: Receive, and Exec, which starts QEMU with the descriptors as 3, 4, and so on.
// QEMU opens /proc/self/fd/3, which is its own.
//
// On the socket, a stream: the server sends one message and ends its side; the client reads it and closes.
// With a descriptor (SCM_RIGHTS) the message is one byte, 0; without, text that says why there is none.
//
// Who has the descriptor can read and write the memory, as a QEMU of vnic's user can; it can neither shrink,
// grow nor seal it, nor make a program of it (MFD_NOEXEC_SEAL, where the kernel has it). Each gets an open file
// of its own: flags, position and locks of one are not another's.
//
// What peers can cost. They are served one after the other, by one goroutine a socket under one lock: a process
// that connects all the time keeps at most one processor busy, and whoever else connects is served in turn.
// Nothing waits for a peer. A connection is kept as long as the descriptor in it was not received (SIOCOUTQ),
// since such a one counts as in flight for vnic's user, who may have RLIMIT_NOFILE of these (unix(7),
// ETOOMANYREFS), and looked at when the next one connects. At most 64 of a user and 256 in all are kept; who
// comes then gets text. A descriptor and some 100 bytes each. Who is refused is told of once for each user, of
// at most 16 users.
package gpufd
