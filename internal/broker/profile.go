package broker

import (
	"slices"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/confine"
)

// paths are the files and directories that Landlock lets a process confined in mode On open, for reading.
var paths = []confine.Path{
	{Path: "/proc/self", Why: "dma: the mounts, to refuse memory of file systems that a server is behind; " +
		"its own descriptors; --metrics: its own memory, CPU time and descriptors"},
	{Path: "/proc/stat", Why: "--metrics: when the machine started"},
	{Path: "/sys/devices/system/cpu/online", Optional: true, Why: "malloc of glibc, in a vnic that is built with cgo " +
		"(or -race): how many arenas, when it has eight"},
}

// Calls are system calls that a confined process may make in addition to the ones that the function calls returns.
type Calls []confine.Call

// Terminal has the calls for a process that uses a terminal. TIOCSTI, which puts characters into a terminal's
// input, is not among them.
var Terminal = Calls{
	{Nr: unix.SYS_IOCTL, Name: "ioctl", If: []confine.Arg{confine.IsInt(1, unix.TIOCGWINSZ)}, Why: "its size"},
	{Nr: unix.SYS_IOCTL, Name: "ioctl", If: []confine.Arg{confine.IsInt(1, unix.TCSETS)}, Why: "raw mode, and back"},
	{Nr: unix.SYS_IOCTL, Name: "ioctl", If: []confine.Arg{confine.IsInt(1, unix.TIOCGPGRP)},
		Why: "whether it is another process's now"},
}

// InProcess has the calls for a process that drives NICs itself. The process must not keep an unconnected UDP socket
// after Confine: by sendmsg, which InProcess allows, it could send datagrams to any address.
var InProcess = Calls{
	{Nr: unix.SYS_SENDMSG, Name: "sendmsg", Why: "driver: eventfds for the NIC, with the messages of vhost-user"},
	{Nr: unix.SYS_SCHED_GETATTR, Name: "sched_getattr", If: []confine.Arg{confine.IsInt(0, 0)},
		Why: "gpumem: a thread that runs where no other wants to digests what is sent"},
	{Nr: unix.SYS_SCHED_SETATTR, Name: "sched_setattr", If: []confine.Arg{confine.IsInt(0, 0)}, Why: "the same"},
}

// handover has the calls that Confine needs to send seccomp's listener to the broker, and to forbid calls. In mode On
// Confine forbids them at its end, except calls that its parameter more has without conditions: the number of the
// broker's descriptor, with which sendmsg is allowed until then, could later be another socket's.
var handover = []uintptr{unix.SYS_SENDMSG, unix.SYS_SECCOMP}

// calls returns the calls that each confined process may make, in mode On the ones in handover only until Confine ends.
// pid is the process's id, and broker its descriptor of the socket to the broker.
func calls(pid, broker int) []confine.Call {
	const writes = unix.O_ACCMODE | unix.O_CREAT | unix.O_TRUNC | unix.O_PATH
	return slices.Concat(confine.GoRuntime(pid), confine.Sockets, callsArch, []confine.Call{
		{Nr: sysFstatat, Name: "fstatat", Why: "--metrics: whether /proc is there; names, no contents"},
		{Nr: unix.SYS_STATFS, Name: "statfs", Why: "--metrics: whether /proc is procfs"},
		{Nr: unix.SYS_GETDENTS64, Name: "getdents64", Why: "--metrics: how many descriptors there are"},
		{Nr: unix.SYS_OPENAT, Name: "openat", If: []confine.Arg{confine.Without(2, writes)},
			Why: "dma: /proc/self; Landlock says which, and nothing is made or written"},
		{Nr: unix.SYS_SENDMSG, Name: "sendmsg", If: []confine.Arg{confine.IsInt(0, uint32(broker))},
			Why: "the listener, once, and then no more (handover): a UDP socket would send anywhere"},
		{Nr: unix.SYS_SECCOMP, Name: "seccomp", Why: "to take away what the listener needed (handover)"},
		{Nr: unix.SYS_PRCTL, Name: "prctl", If: []confine.Arg{confine.IsInt(0, unix.PR_SET_NO_NEW_PRIVS)},
			Why: "the same; it is set already"},
		{Nr: unix.SYS_READLINKAT, Name: "readlinkat", Why: "dma, scm: what a descriptor is"},
		{Nr: unix.SYS_STATX, Name: "statx", Why: "dma: which file a guest's memory is"},
		{Nr: unix.SYS_FSTATFS, Name: "fstatfs", Why: "dma: hugetlbfs"},
		{Nr: unix.SYS_FCNTL, Name: "fcntl", If: []confine.Arg{confine.IsInt(1, unix.F_GET_SEALS)},
			Why: "dma: memory, or a disk"},
		{Nr: unix.SYS_PREADV2, Name: "preadv2", Why: "nic: reads of eventfds that never wait"},
		{Nr: unix.SYS_GETEUID, Name: "geteuid", Why: "serve: whose the peer is"},
		{Nr: unix.SYS_EVENTFD2, Name: "eventfd2", Why: "nic: a worker sleeps on one"},
		{Nr: unix.SYS_IOCTL, Name: "ioctl", If: []confine.Arg{confine.IsInt(1, unix.TCGETS)},
			Why: "messages: whether stderr is a terminal, for colour"},
		{Nr: unix.SYS_PPOLL, Name: "ppoll", Why: "nic: a worker sleeps on several eventfds"},
		{Nr: unix.SYS_FALLOCATE, Name: "fallocate", Why: "gpumem: a reset gives pages back"},
	})
}
