package confine

import "golang.org/x/sys/unix"

// goRuntimeArch is what only this architecture has.
var goRuntimeArch []Call

const auditArch = unix.AUDIT_ARCH_AARCH64
