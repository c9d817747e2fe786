// Package broker confines a process that maps guests' memory. A second process, the broker, stays outside of the
// sandbox and does for the confined process what the sandbox forbids: it opens connections, renames and removes files,
// and signals QEMUs.
//
// Start starts the broker: this program again, with another argument, before any guest's memory is mapped. Confine
// then forbids the process, for good, all system calls that neither profile.go nor the caller lists: by Landlock the
// process can open, for reading, only its own /proc and two files of the kernel; by seccomp it can start, trace and
// signal no other process, and connect and bind no socket. The process sends requests to the broker over a socket
// pair. The table in requests.go lists all requests, and when each is allowed.
//
// The kernel reports system calls that seccomp refuses to the broker (seccomp's listener), which counts them and logs
// each kind once, at most 64 kinds. In mode log nothing is refused; the broker counts and logs the calls that seccomp
// or Landlock would refuse.
//
// A message is a header of two numbers and a body, and has one descriptor at most. The body is a value of fixed size;
// an answer's may also be a list of addresses. The broker holds a bounded number of unanswered requests, files,
// processes and GPUs' memories (server.go); it remembers at most 4096 senders of each forward, and passes on commands
// of less than 4 KiB to a monitor. It ends when the process ends in any way. When the broker is killed, the context of
// Client.Guard ends, so that the process ends, and the kernel ends the process's QEMUs (internal/proc).
//
// vnic run and vnic boot start their QEMUs themselves before they are confined, and accept no connection of a QEMU
// until then: Gate. So no QEMU is started for a process that a guest may have taken over.
//
// A process that was taken over keeps what it has: the memory of all guests that it serves, its connections, and the
// log and the capture that are open. It can neither kill the broker nor read the broker's memory.
//
// Where the kernel has no Landlock, the process can open files that the user may read, for reading. Where the kernel
// has no seccomp filters, Confine returns an error.
package broker
