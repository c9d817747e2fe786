package confine

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// ErrNoListener means that refused system calls cannot be reported: the kernel is older than 5.7, or this process
// already has a filter with a listener. Refused calls fail nevertheless, except in a trial.
var ErrNoListener = errors.New("refused system calls are not counted: the kernel has no listener for them")

// Actions of a filter (seccomp(2)).
const (
	actionAllow  = uint32(unix.SECCOMP_RET_ALLOW)
	actionNotify = uint32(unix.SECCOMP_RET_USER_NOTIF)
	actionErrno  = uint32(unix.SECCOMP_RET_ERRNO) // the errno goes into its lower 16 bits

	actionRefuse = actionErrno | uint32(unix.EPERM)
	actionAbsent = actionErrno | uint32(unix.ENOSYS)
)

func program(list []Call, otherwise uint32) ([]unix.SockFilter, error) {
	p := policy{otherwise: otherwise, badArch: actionRefuse, calls: make(map[uint32][]bpf.Instruction)}
	absent := make(map[uint32]bool)
	for _, c := range Absent {
		nr := uint32(c.Nr)
		absent[nr] = true
		p.calls[nr] = []bpf.Instruction{bpf.RetConstant{Val: actionAbsent}}
	}
	always := make(map[uint32]bool)
	for _, c := range list {
		if len(c.If) == 0 {
			nr := uint32(c.Nr)
			always[nr] = true
			p.calls[nr] = []bpf.Instruction{bpf.RetConstant{Val: actionAllow}}
		}
	}
	alternatives := make(map[uint32][]bpf.Instruction)
	for _, c := range list {
		nr := uint32(c.Nr)
		if len(c.If) == 0 || always[nr] {
			continue
		}
		if err := c.check(); err != nil {
			return nil, err
		}
		alternatives[nr] = append(alternatives[nr], alternative(c.If)...)
	}
	for nr, code := range alternatives {
		last := otherwise
		if absent[nr] {
			last = actionAbsent
		}
		p.calls[nr] = append(code, bpf.RetConstant{Val: last})
	}
	return p.assemble()
}

// Calls refuses all system calls but the listed ones, to all threads, permanently (in a trial run, the listener's
// holder lets them happen). The caller must pass the listener to another process, which calls [Watch], and close its
// own descriptor. Until Watch runs, a refused call blocks its thread, except calls in [Absent]. If Calls returns
// [ErrNoListener], there is no listener; the filter is installed nevertheless, unless trial is set.
func Calls(list []Call, trial bool) (listener *os.File, err error) {
	p, err := program(list, actionNotify)
	if err != nil {
		return nil, err
	}
	const all = unix.SECCOMP_FILTER_FLAG_TSYNC | unix.SECCOMP_FILTER_FLAG_NEW_LISTENER |
		unix.SECCOMP_FILTER_FLAG_TSYNC_ESRCH
	// Without WAIT_KILLABLE_RECV a signal could interrupt a thread that waits for the holder's answer: the call would
	// start again, and be reported twice.
	fd, err := setFilter(p, all|unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV)
	if errors.Is(err, unix.EINVAL) { // before Linux 5.19
		fd, err = setFilter(p, all)
	}
	switch {
	case err == nil:
		return os.NewFile(uintptr(fd), "seccomp listener"), nil
	case !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.EBUSY):
		return nil, fmt.Errorf("seccomp: %w", err)
	case trial:
		return nil, ErrNoListener
	}
	if p, err = program(list, actionRefuse); err == nil {
		err = setFilterOnAll(p)
	}
	if err != nil {
		return nil, fmt.Errorf("seccomp: %w", err)
	}
	return nil, ErrNoListener
}

// Forbid removes system calls that [Calls] has left, from all threads. They then fail with EPERM and are not
// reported to the listener. Calls must have left seccomp(2) and prctl(PR_SET_NO_NEW_PRIVS).
func Forbid(list ...uintptr) error {
	p, err := forbidding(list)
	if err == nil {
		err = setFilterOnAll(p)
	}
	if err != nil {
		return fmt.Errorf("seccomp: %w", err)
	}
	return nil
}

func forbidding(list []uintptr) ([]unix.SockFilter, error) {
	p := policy{otherwise: actionAllow, badArch: actionAllow, calls: make(map[uint32][]bpf.Instruction)}
	for _, nr := range list {
		p.calls[uint32(nr)] = []bpf.Instruction{bpf.RetConstant{Val: actionRefuse}}
	}
	return p.assemble()
}
