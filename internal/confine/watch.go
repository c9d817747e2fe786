package confine

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Refusal is a system call that the list of [Calls] does not allow, as [Watch] reports it, with its arguments.
type Refusal struct {
	Nr   int32
	PID  int // of the thread, in the PID namespace of the reader
	Args [6]uint64
}

// String returns the call's name, or its number if the name is not known, and for some calls also arguments.
func (r Refusal) String() string {
	switch r.Nr {
	case unix.SYS_SOCKET:
		return fmt.Sprintf("socket, family %d", uint32(r.Args[0]))
	case unix.SYS_FCNTL, unix.SYS_IOCTL:
		return fmt.Sprintf("%s, request %#x", name(r.Nr), uint32(r.Args[1]))
	case unix.SYS_SETSOCKOPT:
		return fmt.Sprintf("setsockopt, level %d option %d", uint32(r.Args[1]), uint32(r.Args[2]))
	case unix.SYS_PRCTL:
		return fmt.Sprintf("prctl, option %#x", uint32(r.Args[0]))
	}
	return name(r.Nr)
}

var ne = binary.NativeEndian

var refusedWith = -int32(unix.EPERM)

// Watch answers the refused calls of a listener with EPERM, or, in a trial, by letting the call happen. It calls the
// function refused before each answer. It returns nil when the last process with the listener's filter has ended, and
// does not close the listener.
func Watch(listener int, trial bool, refused func(Refusal)) error {
	for {
		// A waiting RECV does not return when the last process ends (Linux before 6.11).
		ready := []unix.PollFd{{Fd: int32(listener), Events: unix.POLLIN}}
		if _, err := unix.Poll(ready, -1); errors.Is(err, unix.EINTR) {
			continue
		} else if err != nil {
			return err
		}
		if ready[0].Revents&unix.POLLIN == 0 {
			return nil
		}
		// struct seccomp_notif: id 8, pid 4, flags 4, then seccomp_data: nr 4, arch 4, instruction
		// pointer 8, args 6 x 8
		var b [notifLen]byte
		if err := receive(listener, &b); errors.Is(err, unix.EINTR) || errors.Is(err, unix.ENOENT) {
			continue // ENOENT: the calling thread was killed, or its call interrupted
		} else if err != nil {
			return err
		}
		r := Refusal{Nr: int32(ne.Uint32(b[16:])), PID: int(ne.Uint32(b[8:]))}
		for i := range r.Args {
			r.Args[i] = ne.Uint64(b[32+8*i:])
		}
		refused(r)
		// struct seccomp_notif_resp: id 8, val 8, error 4, flags 4
		var a [respLen]byte
		copy(a[:8], b[:8])
		if trial {
			ne.PutUint32(a[20:], unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE)
		} else {
			ne.PutUint32(a[16:], uint32(refusedWith))
		}
		if err := answer(listener, &a); err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
