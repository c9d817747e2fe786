// Package broker confines a process that maps guests' memory. A second process, the broker, stays outside of
// the sandbox, and carries out the requests of the confined process that the table in requests.go lists: for example,
// it opens connections, renames and removes files, and signals QEMUs.
//
// [Start] starts the broker, which is this program again with another argument. A process calls Start before it maps a
// guest's memory, and then [Client.Confine]. In mode on, Confine limits the process for good. By Landlock the process
// can open, for reading, only its own /proc and some files of the kernel. By seccomp it can make only the system calls
// that the function calls or Confine's caller lists: it can start, trace and signal no other process, and connect and
// bind no socket.
//
// The broker counts system calls that seccomp refuses, if the kernel reports them (Linux 5.7), and logs each of the
// first 64 kinds once. In mode log nothing is refused; the broker counts the calls that seccomp would refuse, and the
// opens of files that Landlock would refuse, and logs them likewise.
//
// The numbers of files, processes, GPUs' memories and unfinished requests that the broker keeps are bounded
// (server.go).
//
// A process that starts QEMUs itself does so before it is confined ([Gate]): no QEMU is started for a process
// that a guest may have taken over.
//
// A confined process that was taken over keeps the memory of the guests that it serves, its connections and its open
// files. In mode on it can neither kill the broker nor read the broker's memory.
//
// Without Landlock in the kernel, a process confined in mode on can still open, for reading, files that the user may
// read. If the kernel has no seccomp filters, or in mode log does not report calls, [Client.Confine] returns an error.
package broker
