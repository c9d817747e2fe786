// Package spare keeps a second process ready that does this one's job by TCG when KVM stops its guests.
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
// guests' job has begun, it does the job by TCG on the same terminal. It starts before the guests: a guest that
// has taken over this process cannot choose its arguments and environment.
type Spare struct {
	child *proc.Child
	turn  *os.File // a line, a qemu.RunError's Record, makes the spare begin; the end of the file ends or interrupts it
}

// spareEnv has the descriptor of a spare's end of the pipe.
const spareEnv = "VNIC_SPARE"

// standby is nil if there is no spare, or Take has returned it.
var standby atomic.Pointer[Spare]

// isVNIC is set by Await: a test's process has no arguments of vnic.
var isVNIC bool

var taken bool

// Taken reports whether this process is a spare that does the job.
func Taken() bool { return taken }

// Keep starts a spare if this process is a vnic, and no spare, and /dev/kvm can be opened.
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

// Take returns this process's spare, or nil. The caller ends it: a second call returns nil.
func Take() *Spare { return standby.Swap(nil) }

// JobBegins ends the spare, because a job cannot begin twice.
func JobBegins() {
	Take().Dismiss()
}

// Dismiss ends a spare, which may be nil.
func (s *Spare) Dismiss() {
	if s != nil {
		_ = s.turn.Close()
		<-s.child.Done()
	}
}

// TakeOver makes the spare do the job, and returns its exit status. When interrupted is closed, it interrupts
// the spare. An error: the spare ended before it could begin, or by a signal.
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
// dismissed it or has ended. After true it calls interrupt once the first process is interrupted or has ended.
// In a process that is no spare it returns true.
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

// StoppedByKVM reports whether KVM is to blame for an error. once is the line to print before the job begins
// again; record is for TakeOver.
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
