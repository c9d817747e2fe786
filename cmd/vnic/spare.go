package main

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

// A spare is this program again, with the same arguments, that does nothing yet. It is started while this process may
// start others, where guests run by KVM without having been told to. If KVM stops a guest before the guests' job has
// begun, this process ends all that it has, and the spare does the job by TCG in its place, on the same terminal.
// Nobody else is started for a process that may have been taken over: the spare's arguments and environment are from
// before its guests.
type spare struct {
	child *proc.Child
	turn  *os.File // a line has it begin, a qemu.RunError's Record; the end of the file has it end
}

// spareEnv has the descriptor of a spare's end of the pipe.
const spareEnv = "VNIC_SPARE"

// standby is this process's spare; nil: there is none, or the job has begun.
var standby atomic.Pointer[spare]

// isVNIC is set by main: arguments of a test are none of ours.
var isVNIC bool

// isSpare says that this process is a spare whose turn has come: its guests run by TCG, whatever its arguments say.
var isSpare bool

// keepSpare starts a spare, where guests may be run by KVM.
func keepSpare() error {
	if !isVNIC || isSpare || !qemu.MayUseKVM() {
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
	standby.Store(&spare{child: child, turn: w})
	return nil
}

// jobBegins ends the spare: the job is not begun twice. It is also for a job that cannot be begun again: its input is
// read once, or another host takes part.
func jobBegins() {
	standby.Swap(nil).dismiss()
}

// dismiss ends a spare, which may be nil.
func (s *spare) dismiss() {
	if s != nil {
		_ = s.turn.Close()
		<-s.child.Done()
	}
}

// takeOver has the spare do the job, and gives its exit status. It is interrupted as this process is. An error is one
// of a spare that is gone.
func (s *spare) takeOver(record string, interrupted <-chan struct{}) (int, error) {
	if _, err := s.turn.WriteString(record + "\n"); err != nil {
		return exitFailed, fmt.Errorf("the process that goes on by TCG is gone: %w", err)
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
		return exitFailed, fmt.Errorf("the process that went on by TCG: %w", err)
	}
}

// awaitTurn is the beginning of a spare: it returns when its turn has come, and false when it never will. From then on
// interrupt is called when the process before it is interrupted, or gone. It does nothing in a process that is no
// spare.
func awaitTurn(interrupt func()) bool {
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
	isSpare = true
	qemu.Keep(record)
	go func() {
		_, _ = f.ReadByte()
		interrupt()
	}()
	return true
}

// stoppedByKVM is what to say of an error that KVM is to blame for: once is a line for a job that is begun again by
// TCG, and record is what takeOver wants.
func stoppedByKVM(err error) (once, record string, yes bool) {
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
