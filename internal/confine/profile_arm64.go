package confine

import "golang.org/x/sys/unix"

// goRuntimeArch are calls that only this architecture has.
var goRuntimeArch []Call

const auditArch = unix.AUDIT_ARCH_AARCH64
