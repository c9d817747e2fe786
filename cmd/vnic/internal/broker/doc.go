// Package broker confines a process that maps guests, and does outside of it what it may not do any
// more.
//
// Start starts the broker: this program again, with other arguments, before anything of a guest is
// there. Confine then takes from the process all but what profile.go lists, for good: by Landlock,
// it opens nothing but its own /proc; by seccomp, it starts, connects, binds, traces, signals
// nothing. From then on it asks the broker over a socket pair:
//
//   - for connections and UDP sockets of the host, each of which the broker judges by the gateway's
//     policy that it was started with (gateway.Dialer), and for the host's addresses and resolvers;
//   - for the datagrams of the forwards of UDP: the broker keeps these sockets, which could send to
//     anybody, and passes answers only to who has sent something;
//   - to connect to one of the sockets at which QEMUs listen (serve --client), by its number;
//   - to remove one of the files named before Confine, if it is still the same, or to give one the name in its
//     directory that was said then (run --plot);
//   - to end one of the QEMUs that the process has started before Confine (run, boot: Gate), which the
//     broker has pidfds of, by SIGTERM or SIGKILL; and to give a QEMU's monitor one of three commands,
//     as a monitor would open any file;
//   - to give a GPU's memory to a group's processes that connect to a socket made before Confine (serve
//     --socket-group: package gpufd), as long as it lives;
//   - whether a process has memory of an earlier vnic (serve's warning), which takes a look into
//     its /proc;
//   - how many system calls were refused: the broker is told of them by the kernel, and writes a
//     line for each kind, at most 64. In mode log nothing is refused, and opening files that Landlock
//     would not permit counts, too.
//
// Requests are 48 bytes; anything else is ignored. The broker keeps at most 1024 requests under
// way, 4096 senders for each forward, 256 files, 256 processes and 64 GPUs' memory; a command to a monitor has 4 KiB at
// most. It ends when the process ends, whatever way; and when it is killed, Client.Guard has the process end, and
// the kernel has its QEMUs end then (internal/proc).
//
// vnic run and vnic boot start their QEMUs themselves, while they may, and take no connection of any
// before they are confined: a Gate sees to that. So nobody starts a QEMU for a process that may have
// been taken over.
//
// A process that has been taken over keeps what it has: the memory of all guests that are served,
// the connections that there are, the log and the capture that are open. It cannot kill the broker,
// nor read its memory.
//
// Where the kernel has no Landlock, files that the user may read can be opened, for reading; where
// it has no seccomp filters, Confine is an error.
package broker
