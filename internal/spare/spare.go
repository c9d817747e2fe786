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

// Spare is this program again, with the same arguments, that does nothing yet. It is started while this process may
// start others, where guests run by KVM without having been told to. If KVM stops a guest before the guests' job has
// begun, this process ends all that it has, and the spare does the job by TCG in its place, on the same terminal.
// Nobody else is started for a process that may have been taken over: the spare's arguments and environment are from
// before its guests.
type Spare struct {
	child *proc.Child
	turn  *os.File // a line, a qemu.RunError's Record, begins the spare's turn; the end of the file ends the spare
}

// spareEnv has the descriptor of a spare's end of the pipe.
const spareEnv = "VNIC_SPARE"

// standby is this process's spare; nil: there is none, or the job has begun.
var standby atomic.Pointer[Spare]

// isVNIC is set by Await: the arguments of a test's process are none of vnic's.
var isVNIC bool

// taken is set when a spare's turn has come.
var taken bool

// Taken reports whether this process is a spare whose turn has come: its guests run by TCG, whatever its arguments say.
func Taken() bool { return taken }

// Keep starts a spare if KVM may run the guests of this process.
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

// Take returns this process's spare, which may be nil, and forgets it: the caller ends it.
func Take() *Spare { return standby.Swap(nil) }

// JobBegins ends the spare: the job is not begun twice. It is also for a job that cannot be begun again: its input is
// read once, or another host takes part.
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

// TakeOver makes the spare do the job, and returns its exit status. When interrupted is closed,
// TakeOver interrupts the spare. An error means that the spare is gone.
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

// Await is the beginning of a spare: it returns when its turn has come, and false when it never will. From then on
// interrupt is called when the process before it is interrupted, or gone. It does nothing in a process that is no
// spare.
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

// StoppedByKVM reports whether KVM is to blame for an error. once is the line to print when the job begins again by
// TCG; record is for TakeOver.
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

// firstKVMLine is what QEMU says of an error of KVM's.
func firstKVMLine(stderr []string) string {
	for _, l := range stderr {
		if qemu.OfKVM(l) {
			return strings.TrimSpace(l)
		}
	}
	return ""
}
