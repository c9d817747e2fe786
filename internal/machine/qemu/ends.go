package qemu

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/machine/assets"
)

// Errors for what a machine lacks besides the fetched files. Each comes inside a *Missing.
var (
	ErrNoMemory = errors.New("not enough memory")
	ErrNoDevice = errors.New("this QEMU lacks a device")
	ErrModule   = errors.New("the guest's kernel does not load module")
)

// Why a device was not removed: Machine.UnplugNIC, UnplugGPU.
var (
	ErrFixed = errors.New("it cannot be taken out of this machine")
	ErrKept  = errors.New("the guest did not release it")
)

// MemoryError adds advice to an error of memory in a file, if there is too little memory.
func MemoryError(what string, err error) error {
	if !errors.Is(err, unix.ENOMEM) && !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EFBIG) {
		return err
	}
	if p := (*fs.PathError)(nil); errors.As(err, &p) {
		err = p.Err
	}
	return &assets.Missing{What: what, Err: fmt.Errorf("%w: %w", ErrNoMemory, err),
		Fix: "free some, or raise the limit of files (ulimit -f) or of the container"}
}

// Ends of a run other than power-off or Close. Each comes inside a *RunError.
var (
	ErrExited      = errors.New("QEMU ended early")
	ErrKernelPanic = errors.New("guest kernel panic")
	ErrReset       = errors.New("guest reset itself")
	ErrNoInit      = errors.New("guest's init did not report in time")
	ErrSilent      = errors.New("guest printed nothing")
	ErrPowerOff    = errors.New("guest powered off before its init reported")
	ErrTimeLimit   = errors.New("time limit of the run reached")
	ErrStopped     = errors.New("QEMU stopped the guest")
	ErrAgent       = errors.New("guest does not answer any more")
)

// RunError is the error of a failed run, with the last output of the guest and QEMU.
type RunError struct {
	Name    string   // the machine's
	Err     error    // one of the errors above, or a context's error, or an error that wraps one
	Detail  string   // may be empty
	Console []string // the last lines of the guest's console; after a panic the lines with its cause and place
	Stderr  []string // the last lines of QEMU's own output
	// KVM ran the guest, and either KVM stopped it, or QEMU ended before the guest's init reported,
	// or the guest showed no activity. It may run with TCG.
	KVM bool

	record *record // nil: no record
}

// Unwrap returns the cause.
func (e *RunError) Unwrap() error { return e.Err }

func (e *RunError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %v", e.Name, e.Err)
	if e.Detail != "" {
		b.WriteString(": " + e.Detail)
	}
	console := "last lines of its console"
	if errors.Is(e.Err, ErrKernelPanic) {
		console = "its kernel said"
	}
	for _, part := range []struct {
		name  string
		lines []string
	}{{"QEMU said", e.Stderr}, {console, e.Console}} {
		if len(part.lines) > 0 {
			fmt.Fprintf(&b, "\n%s:\n\t%s", part.name, strings.Join(part.lines, "\n\t"))
		}
	}
	return b.String()
}
