// Package spare keeps a second process ready that does this one's job by TCG if KVM stops the guests before the job
// has begun.
package spare

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"

	"vnic.dev/vnic/internal/machine/qemu"
	"vnic.dev/vnic/internal/proc"
)

// Spare is a waiting second process of this program, with the same arguments: if KVM stops a guest before the
// guests' job has begun, the spare does the job by TCG on the same terminal. It starts before the guests: a guest that
// has taken over this process cannot choose the spare's arguments and environment.
type Spare struct {
	child *proc.Child
	turn  *os.File // a line (qemu.RunError.Record) makes the spare begin; a close before ends it, later interrupts it
}

// spareEnv is the environment variable with the number of the spare's descriptor: the reading end of the pipe.
const spareEnv = "VNIC_SPARE"

// standby is this process's spare; nil if there is none, or Take has returned it.
var standby atomic.Pointer[Spare]

// isVNIC is set by Await, which vnic's main function calls: a test's process, with other arguments, keeps no spare.
var isVNIC bool

var taken bool

// Taken reports whether this process is itself a spare that was told to do the job.
func Taken() bool { return taken }

// Keep starts a spare if this process has called Await, is no spare itself, and can open /dev/kvm.
func Keep() error {
	if !isVNIC || taken || !qemu.MayUseKVM() {
		return nil
	}
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }()
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = os.Stdin, os.Stdout, os.Stderr, []*os.File{r}
	cmd.Env = append(os.Environ(), spareEnv+"=3")
	child, err := proc.StartBeside(cmd)
	if err != nil {
		return errors.Join(fmt.Errorf("a process that goes on by TCG: %w", err), w.Close())
	}
	standby.Store(&Spare{child: child, turn: w})
	return nil
}

// Take returns this process's spare, or nil. The caller must end the spare: a second call of Take returns nil.
func Take() *Spare { return standby.Swap(nil) }

// JobBegins ends this process's spare, if there is one, because a job cannot begin twice.
func JobBegins() {
	Take().Dismiss()
}

// Dismiss ends a spare, which may be nil, and waits until it has ended.
func (s *Spare) Dismiss() {
	if s != nil {
		_ = s.turn.Close()
		<-s.child.Done()
	}
}

// TakeOver makes the spare do the job, waits until the spare has ended, and returns its exit status. When interrupted
// is closed, TakeOver interrupts the spare. It returns an error if the spare has ended before it could begin, or has
// been ended by a signal.
func (s *Spare) TakeOver(record string, interrupted <-chan struct{}) (int, error) {
	if _, err := s.turn.WriteString(record + "\n"); err != nil {
		return 1, fmt.Errorf("the process that goes on by TCG is gone: %w", err)
	}
	select {
	case <-s.child.Done():
	case <-interrupted:
		_ = s.turn.Close()
		<-s.child.Done()
	}
	var exit *exec.ExitError
	switch err := s.child.Err(); {
	case err == nil:
		return 0, nil
	case errors.As(err, &exit) && exit.ExitCode() >= 0:
		return exit.ExitCode(), nil
	default:
		return 1, fmt.Errorf("the process that went on by TCG: %w", err)
	}
}

// Await waits in a spare: it returns true when the spare must do the job, and false when the first process has
// dismissed the spare or has ended. After true, a goroutine in the spare calls interrupt when the first process is
// interrupted or has ended. In a process that is no spare, Await returns true at once, and nobody calls interrupt.
func Await(interrupt func()) bool {
	isVNIC = true
	n, err := strconv.Atoi(os.Getenv(spareEnv))
	if err != nil {
		return true
	}
	_ = os.Unsetenv(spareEnv)
	syscall.CloseOnExec(n)
	f := bufio.NewReader(os.NewFile(uintptr(n), "turn"))
	record, err := f.ReadString('\n')
	if err != nil {
		return false
	}
	taken = true
	qemu.Keep(record)
	go func() {
		_, _ = f.ReadByte()
		interrupt()
	}()
	return true
}

// StoppedByKVM reports, as yes, whether KVM may be the cause of an error. The result once is the line to print before
// the job begins again by TCG; record is for TakeOver.
func StoppedByKVM(err error) (once, record string, yes bool) {
	var e *qemu.RunError
	if !errors.As(err, &e) || !e.KVM {
		return "", "", false
	}
	what := e.Err.Error()
	if e.Detail != "" {
		what += ": " + e.Detail
	}
	if i := firstKVMLine(e.Stderr); i != "" {
		what += ": " + i
	}
	return fmt.Sprintf("KVM: %s: %s: all guests are started again, by TCG", e.Name, what), e.Record(), true
}

func firstKVMLine(stderr []string) string {
	for _, l := range stderr {
		if qemu.OfKVM(l) {
			return strings.TrimSpace(l)
		}
	}
	return ""
}
