package proc

import (
	"errors"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// Child is a process that does not outlive this one: the kernel kills it when the thread that
// forked it ends (PR_SET_PDEATHSIG), so that thread is kept until the child has been waited for.
type Child struct {
	cmd  *exec.Cmd
	done chan struct{} // closed after Wait
	err  error         // Wait's; set before done is closed

	send  func(syscall.Signal) error // own, or SignalBy's
	group bool                       // it leads one
}

// StartChild starts cmd in a process group of its own, with /dev/null for the streams that cmd
// leaves open. Of cmd.SysProcAttr it keeps the Credential.
func StartChild(cmd *exec.Cmd) (*Child, error) { return start(cmd, true) }

// StartBeside is StartChild, but the child stays in this process's group: it has the terminal, too.
func StartBeside(cmd *exec.Cmd) (*Child, error) { return start(cmd, false) }

func start(cmd *exec.Cmd, group bool) (*Child, error) {
	attr := &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: group}
	if cmd.SysProcAttr != nil {
		attr.Credential = cmd.SysProcAttr.Credential
	}
	cmd.SysProcAttr = attr
	c := &Child{cmd: cmd, done: make(chan struct{}), group: group}
	c.send = c.own
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			c.err = cmd.Wait()
			close(c.done)
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return c, nil
}

// PID is the child's process id, which is its process group's too, unless it was started beside.
func (c *Child) PID() int { return c.cmd.Process.Pid }

// Done is closed when the child has ended and has been waited for.
func (c *Child) Done() <-chan struct{} { return c.done }

// Err says how the child ended, as exec.Cmd.Wait does, once Done is closed.
func (c *Child) Err() error { return c.err }

// Ends waits for at most d, and says whether the child has ended.
func (c *Child) Ends(d time.Duration) bool {
	select {
	case <-c.done:
		return true
	case <-time.After(d):
		return false
	}
}

// SignalBy has signals for the child and what it has started sent by another process, as this one may
// not any more. It is called before End.
func (c *Child) SignalBy(send func(syscall.Signal) error) { c.send = send }

// End ends the child by SIGTERM, and by SIGKILL if it has not ended after grace, with whatever it
// has started. When End returns, the child has been waited for; unless nobody is left to signal it:
// then it ends with this process, at the latest.
func (c *Child) End(grace time.Duration) {
	if c.send(syscall.SIGTERM) == nil && c.Ends(grace) {
		return
	}
	if err := c.send(syscall.SIGKILL); err == nil || errors.Is(err, syscall.ESRCH) {
		<-c.done
	}
}

// own sends a signal to a child that was not waited for; SIGKILL, without an error, to its group.
func (c *Child) own(sig syscall.Signal) error {
	if sig == syscall.SIGKILL && c.group {
		_ = syscall.Kill(-c.PID(), sig) // it has not been waited for, so the group is its
		return nil
	}
	return c.cmd.Process.Signal(sig) // by pidfd: never another process
}
