package broker

import (
	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/confine"
)

const sysFstatat = unix.SYS_FSTATAT

var callsArch []confine.Call
