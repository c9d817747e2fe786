package confine

import "golang.org/x/sys/unix"

// goRuntimeArch are calls of GoRuntime that arm64 has and amd64 does not: none.
var goRuntimeArch []Call

const auditArch = unix.AUDIT_ARCH_AARCH64
