package broker

import (
	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/confine"
)

const sysFstatat = unix.SYS_NEWFSTATAT

// callsArch are calls of the function calls that amd64 has and arm64 does not.
var callsArch = []confine.Call{
	{Nr: unix.SYS_POLL, Name: "poll", Why: "nic, vfiouser: whether an eventfd is full"},
}
