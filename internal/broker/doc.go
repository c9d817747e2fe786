// Package broker confines a process that maps guests' memory. A second process, the broker, stays outside of
// the sandbox, and does for the confined process what the table in requests.go lists: for example, it opens
// connections, renames and removes files, and signals QEMUs.
//
// [Start] starts the broker: this program again, with another argument, before any guest's memory is mapped.
// [Client.Confine] then, in mode on, forbids the process, for good, the system calls that neither the function calls
// nor the caller lists: by Landlock it can open, for reading, only its own /proc and some files of the kernel; by
// seccomp it can start, trace and signal no other process, and connect and bind no socket.
//
// The broker counts system calls that seccomp refuses, if the kernel reports them (Linux 5.7), and logs each of the
// first 64 kinds once. In mode log nothing is refused; the broker counts and logs the calls that seccomp or Landlock
// would refuse.
//
// What the broker keeps for a confined process is bounded (server.go).
//
// A process that starts QEMUs itself does so before it is confined ([Gate]): no QEMU is started for a process
// that a guest may have taken over.
//
// A process that was taken over keeps what it has: the memory of the guests that it serves, its connections
// and open files. It can neither kill the broker nor read the broker's memory.
//
// Without Landlock in the kernel, the process can open files that the user may read, for reading. Without
// seccomp filters, and in mode log if the kernel does not report calls, [Client.Confine] returns an error.
package broker
