package confine

import "golang.org/x/sys/unix"

// goRuntimeArch are calls of GoRuntime that amd64 has and arm64 does not.
var goRuntimeArch = []Call{
	{unix.SYS_ARCH_PRCTL, "arch_prctl", []Arg{IsInt(0, archSetFS)}, "C's threads"},
	{unix.SYS_EPOLL_WAIT, "epoll_wait", nil, "the network poller"},
}

const archSetFS = 0x1002 // ARCH_SET_FS, asm/prctl.h

const auditArch = unix.AUDIT_ARCH_X86_64
