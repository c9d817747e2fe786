package broker

import (
	"slices"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/confine"
)

// paths are all that a confined process reads of the file system.
var paths = []confine.Path{
	{Path: "/proc/self", Why: "dma: the mounts, to refuse memory of file systems that a server is behind; " +
		"its own descriptors; --metrics: its own memory, CPU time and descriptors"},
	{Path: "/proc/stat", Why: "--metrics: when the machine started"},
	{Path: "/sys/devices/system/cpu/online", Optional: true, Why: "malloc of glibc, in a vnic that is built with cgo " +
		"(or -race): how many arenas, when it has eight"},
}

// Calls are more that a process may call, for what it does besides serving NICs.
type Calls []confine.Call

// Terminal are calls for a process that has a terminal to show progress on, or to hand on to a guest.
// What would put characters into its input (TIOCSTI) is not among them.
var Terminal = Calls{
	{Nr: unix.SYS_IOCTL, Name: "ioctl", If: []confine.Arg{confine.IsInt(1, unix.TIOCGWINSZ)}, Why: "its size"},
	{Nr: unix.SYS_IOCTL, Name: "ioctl", If: []confine.Arg{confine.IsInt(1, unix.TCSETS)}, Why: "raw mode, and back"},
	{Nr: unix.SYS_IOCTL, Name: "ioctl", If: []confine.Arg{confine.IsInt(1, unix.TIOCGPGRP)},
		Why: "whether it is another process's now"},
}

// InProcess are calls for a process that is its own guests. It has no socket that is not connected.
var InProcess = Calls{
	{Nr: unix.SYS_SENDMSG, Name: "sendmsg", Why: "driver: eventfds for the NIC, with the messages of vhost-user"},
	{Nr: unix.SYS_SCHED_GETATTR, Name: "sched_getattr", If: []confine.Arg{confine.IsInt(0, 0)},
		Why: "gpumem: a thread that runs where no other wants to digests what is sent"},
	{Nr: unix.SYS_SCHED_SETATTR, Name: "sched_setattr", If: []confine.Arg{confine.IsInt(0, 0)}, Why: "the same"},
}

// handover are calls that are taken away when the listener has been passed: a descriptor that takes the
// place of the broker's would else do for sendmsg.
var handover = []uintptr{unix.SYS_SENDMSG, unix.SYS_SECCOMP}

// calls are all that a confined process calls. broker is the descriptor that leads to it.
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
