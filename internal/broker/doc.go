// Package broker confines a process that maps guests' memory, and does outside of the sandbox what the process still
// needs.
//
// Start starts the broker: this program again, with another argument, before any guest's memory is mapped. Confine then
// forbids the process, for good, all system calls that profile.go does not list: by Landlock it opens nothing but its
// own /proc and two files of the kernel; by seccomp it starts, connects, binds, traces, signals nothing. From then on
// the process asks the broker, over a socket pair. The table in requests.go is all that it may ask, and when.
//
// The broker also logs each kind of system call that was refused, at most 64, and counts the calls: the kernel reports
// them (seccomp's listener). In mode log nothing is refused, and files that Landlock would not let it open count, too.
//
// A message is a header of two numbers and a body, a struct of fixed size, and has one descriptor at most. The broker
// holds a bounded number of everything (server.go); it remembers 4096 senders of each forward, and passes on commands
// of at most 4 KiB to a monitor. It ends when the process ends in any way. When the broker is killed, the context of
// Client.Guard ends, so that the process ends, and the kernel ends the process's QEMUs (internal/proc).
//
// vnic run and vnic boot start their QEMUs themselves before they are confined, and accept no connection of a QEMU
// until then: Gate. So nobody starts a QEMU for a process that may have been taken over.
//
// A process that was taken over keeps what it has: the memory of all guests that it serves, its connections, and the
// log and the capture that are open. It can neither kill the broker nor read the broker's memory.
//
// Where the kernel has no Landlock, the process can open files that the user may read, for reading. Where the kernel
// has no seccomp filters, Confine is an error.
package broker
