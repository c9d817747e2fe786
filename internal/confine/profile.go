package confine

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Call is an entry of a list for [Calls]: the entry allows a system call if all conditions of If hold. A list may have
// several entries for one system call.
type Call struct {
	Nr   uintptr
	Name string
	If   []Arg
	Why  string
}

// Absent are calls that fail with ENOSYS and are not reported, unless the list of [Calls] allows them: their callers
// then do without them. Calls ignores If in Absent.
var Absent = []Call{
	{unix.SYS_CLONE3, "clone3", nil, "C's threads; its flags are in memory, which no filter sees, and clone does"},
}

// Arg is a condition: the bits of Mask in argument Index (0 to 5) equal Value.
type Arg struct {
	Index       int
	Mask, Value uintptr
}

// Is requires that an argument equals a value.
func Is(index int, value uintptr) Arg { return Arg{index, ^uintptr(0), value} }

// IsInt is Is for an argument that the kernel reads as 32 bits: the upper bits are ignored.
func IsInt(index int, value uint32) Arg { return Arg{index, 1<<32 - 1, uintptr(value)} }

// Without requires that no bit of the mask bits is set in an argument.
func Without(index int, bits uintptr) Arg { return Arg{index, bits, 0} }

// Path is a file that stays readable after [Files], or a directory that stays so with everything below it.
type Path struct {
	Path     string
	Why      string
	Optional bool // may be missing
}

// GoRuntime returns the calls of Go's runtime, of C's threads, and of packages os, net and time, but none that opens a
// file, connects or starts a program. pid is the id of the process to be confined: tgkill is allowed for it alone.
func GoRuntime(pid int) []Call {
	self := uint32(pid)
	return append([]Call{
		{unix.SYS_READ, "read", nil, "what is open"},
		{unix.SYS_WRITE, "write", nil, "what is open"},
		{unix.SYS_READV, "readv", nil, "what is open"},
		{unix.SYS_WRITEV, "writev", nil, "net.Buffers"},
		{unix.SYS_PREAD64, "pread64", nil, "the runtime reads its cgroup's CPU limit again and again"},
		{unix.SYS_CLOSE, "close", nil, ""},
		{unix.SYS_LSEEK, "lseek", nil, "os.File"},
		{unix.SYS_FCNTL, "fcntl", []Arg{IsInt(1, unix.F_GETFL)}, "non-blocking mode"},
		{unix.SYS_FCNTL, "fcntl", []Arg{IsInt(1, unix.F_SETFL)}, "non-blocking mode"},
		{unix.SYS_FCNTL, "fcntl", []Arg{IsInt(1, unix.F_GETFD)}, "close-on-exec"},
		{unix.SYS_FCNTL, "fcntl", []Arg{IsInt(1, unix.F_SETFD)}, "close-on-exec"},
		{unix.SYS_FCNTL, "fcntl", []Arg{IsInt(1, unix.F_DUPFD_CLOEXEC)}, "net.FileConn"},
		{unix.SYS_FSTAT, "fstat", nil, "of what is open"},
		{unix.SYS_MMAP, "mmap", []Arg{Without(2, unix.PROT_EXEC)}, "memory; nothing that can be executed"},
		{unix.SYS_MPROTECT, "mprotect", []Arg{Without(2, unix.PROT_EXEC)}, "memory; nothing that can be executed"},
		{unix.SYS_MUNMAP, "munmap", nil, "memory"},
		{unix.SYS_MADVISE, "madvise", nil, "the garbage collector"},
		{unix.SYS_MINCORE, "mincore", nil, "the runtime"},
		{unix.SYS_PRCTL, "prctl", []Arg{IsInt(0, unix.PR_SET_VMA)}, "the runtime names its memory"},
		{unix.SYS_FUTEX, "futex", nil, "locks, sleeping threads"},
		{unix.SYS_CLONE, "clone", []Arg{{0, unix.CLONE_THREAD, unix.CLONE_THREAD}}, "threads; no processes"},
		{unix.SYS_SET_ROBUST_LIST, "set_robust_list", nil, "C's threads"},
		{unix.SYS_RSEQ, "rseq", nil, "C's threads"},
		{unix.SYS_EXIT, "exit", nil, "threads"},
		{unix.SYS_EXIT_GROUP, "exit_group", nil, "the end"},
		{unix.SYS_SCHED_YIELD, "sched_yield", nil, "the scheduler"},
		{unix.SYS_SCHED_GETAFFINITY, "sched_getaffinity", nil, "the runtime counts processors now and then"},
		{unix.SYS_NANOSLEEP, "nanosleep", nil, "the scheduler"},
		{unix.SYS_CLOCK_GETTIME, "clock_gettime", nil, "where the vDSO does not do"},
		{unix.SYS_CLOCK_NANOSLEEP, "clock_nanosleep", nil, "the scheduler"},
		{unix.SYS_RESTART_SYSCALL, "restart_syscall", nil, "the kernel's own, after a stop"},
		{unix.SYS_RT_SIGACTION, "rt_sigaction", nil, "os/signal"},
		{unix.SYS_RT_SIGPROCMASK, "rt_sigprocmask", nil, "threads"},
		{unix.SYS_RT_SIGRETURN, "rt_sigreturn", nil, "signals"},
		{unix.SYS_SIGALTSTACK, "sigaltstack", nil, "threads"},
		{unix.SYS_GETPID, "getpid", nil, "preemption"},
		{unix.SYS_GETTID, "gettid", nil, "preemption"},
		{unix.SYS_TGKILL, "tgkill", []Arg{IsInt(0, self)}, "preemption; no other process"},
		{unix.SYS_GETRANDOM, "getrandom", nil, "maps, crypto/rand"},
		{unix.SYS_EPOLL_CTL, "epoll_ctl", nil, "the network poller"},
		{unix.SYS_EPOLL_PWAIT, "epoll_pwait", nil, "the network poller"},
		{unix.SYS_EPOLL_CREATE1, "epoll_create1", nil, "the network poller"},
		{unix.SYS_PIPE2, "pipe2", nil, "the network poller of older runtimes"},
		{unix.SYS_WAIT4, "wait4", nil, "for a child that was started before"},
		{unix.SYS_WAITID, "waitid", nil, "for a child that was started before"},
	}, goRuntimeArch...)
}

// Sockets are calls on sockets that are open, but none that connects, binds or sends to an address.
var Sockets = []Call{
	{unix.SYS_ACCEPT4, "accept4", nil, "listeners that are open; theirs are connections to us"},
	{unix.SYS_SHUTDOWN, "shutdown", nil, ""},
	{unix.SYS_GETSOCKNAME, "getsockname", nil, ""},
	{unix.SYS_GETPEERNAME, "getpeername", nil, ""},
	{unix.SYS_GETSOCKOPT, "getsockopt", nil, ""},
	{unix.SYS_SETSOCKOPT, "setsockopt", []Arg{IsInt(1, unix.IPPROTO_TCP), IsInt(2, unix.TCP_NODELAY)}, "package net"},
	{unix.SYS_SETSOCKOPT, "setsockopt", []Arg{IsInt(1, unix.IPPROTO_TCP), IsInt(2, unix.TCP_KEEPIDLE)}, "package net"},
	{unix.SYS_SETSOCKOPT, "setsockopt", []Arg{IsInt(1, unix.IPPROTO_TCP), IsInt(2, unix.TCP_KEEPINTVL)}, "package net"},
	{unix.SYS_SETSOCKOPT, "setsockopt", []Arg{IsInt(1, unix.IPPROTO_TCP), IsInt(2, unix.TCP_KEEPCNT)}, "package net"},
	{unix.SYS_SETSOCKOPT, "setsockopt", []Arg{IsInt(1, unix.SOL_SOCKET), IsInt(2, unix.SO_KEEPALIVE)}, "package net"},
	{unix.SYS_SETSOCKOPT, "setsockopt", []Arg{IsInt(1, unix.SOL_SOCKET), IsInt(2, unix.SO_LINGER)}, "a reset"},
	{unix.SYS_SETSOCKOPT, "setsockopt", []Arg{IsInt(1, unix.SOL_SOCKET), IsInt(2, unix.SO_BROADCAST)}, "net.FileConn"},
	{unix.SYS_SETSOCKOPT, "setsockopt", []Arg{IsInt(1, unix.SOL_UDP), IsInt(2, unix.UDP_SEGMENT)},
		"uplink: how long datagrams are that the kernel cuts"},
	{unix.SYS_RECVFROM, "recvfrom", nil, ""},
	{unix.SYS_RECVMSG, "recvmsg", nil, "descriptors"},
	{unix.SYS_SENDTO, "sendto", []Arg{Is(4, 0)}, "what is connected: with an address a UDP socket would send anywhere"},
}

// names are names of system calls for Refusal.String, in addition to the entries of GoRuntime and Sockets.
var names = map[int32]string{
	unix.SYS_EXECVE: "execve", unix.SYS_EXECVEAT: "execveat", unix.SYS_OPENAT: "openat", unix.SYS_OPENAT2: "openat2",
	unix.SYS_SOCKET: "socket", unix.SYS_SOCKETPAIR: "socketpair", unix.SYS_CONNECT: "connect", unix.SYS_BIND: "bind",
	unix.SYS_LISTEN: "listen", unix.SYS_PTRACE: "ptrace", unix.SYS_PROCESS_VM_READV: "process_vm_readv",
	unix.SYS_PROCESS_VM_WRITEV: "process_vm_writev", unix.SYS_KILL: "kill", unix.SYS_PIDFD_OPEN: "pidfd_open",
	unix.SYS_PIDFD_GETFD: "pidfd_getfd", unix.SYS_PIDFD_SEND_SIGNAL: "pidfd_send_signal", unix.SYS_SENDMSG: "sendmsg",
	unix.SYS_SENDMMSG: "sendmmsg", unix.SYS_UNLINKAT: "unlinkat", unix.SYS_MKDIRAT: "mkdirat", unix.SYS_LINKAT: "linkat",
	unix.SYS_SYMLINKAT: "symlinkat", unix.SYS_RENAMEAT2: "renameat2", unix.SYS_FCHMODAT: "fchmodat",
	unix.SYS_FCHOWNAT: "fchownat", unix.SYS_FTRUNCATE: "ftruncate", unix.SYS_MEMFD_CREATE: "memfd_create",
	unix.SYS_IOCTL: "ioctl", unix.SYS_CLONE3: "clone3", unix.SYS_UNSHARE: "unshare", unix.SYS_SETNS: "setns",
	unix.SYS_MOUNT: "mount", unix.SYS_BPF: "bpf", unix.SYS_IO_URING_SETUP: "io_uring_setup", unix.SYS_SECCOMP: "seccomp",
	unix.SYS_USERFAULTFD: "userfaultfd", unix.SYS_PERF_EVENT_OPEN: "perf_event_open", unix.SYS_KEYCTL: "keyctl",
	unix.SYS_EVENTFD2: "eventfd2", unix.SYS_DUP: "dup", unix.SYS_DUP3: "dup3", unix.SYS_READLINKAT: "readlinkat",
	unix.SYS_SPLICE: "splice", unix.SYS_SENDFILE: "sendfile",
}

func name(nr int32) string {
	if n, ok := names[nr]; ok {
		return n
	}
	for _, list := range [][]Call{GoRuntime(0), Sockets} {
		for _, c := range list {
			if int32(c.Nr) == nr {
				return c.Name
			}
		}
	}
	return fmt.Sprintf("system call %d", nr)
}
