package proc

import (
	"errors"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// Child is a process that the kernel kills when the thread that forked it ends (PR_SET_PDEATHSIG): that thread
// stays until the child has been waited for.
type Child struct {
	cmd  *exec.Cmd
	done chan struct{}
	err  error // set before done is closed

	send  func(syscall.Signal) error
	group bool // the child leads a process group
}

// StartChild starts cmd in a new process group. Of cmd.SysProcAttr it uses only Credential.
func StartChild(cmd *exec.Cmd) (*Child, error) { return start(cmd, true) }

// StartBeside is StartChild in this process's group: the child can use this process's terminal.
func StartBeside(cmd *exec.Cmd) (*Child, error) { return start(cmd, false) }

func start(cmd *exec.Cmd, group bool) (*Child, error) {
	attr := &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: group}
	if cmd.SysProcAttr != nil {
		attr.Credential = cmd.SysProcAttr.Credential
	}
	cmd.SysProcAttr = attr
	c := &Child{cmd: cmd, done: make(chan struct{}), group: group}
	c.send = c.signal
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

// PID returns the child's process id. After StartChild it is also the id of the process group that the child leads.
func (c *Child) PID() int { return c.cmd.Process.Pid }

// Done returns a channel that is closed when the child has been waited for.
func (c *Child) Done() <-chan struct{} { return c.done }

// Err returns the child's exit error, like exec.Cmd.Wait, after Done is closed.
func (c *Child) Err() error { return c.err }

func (c *Child) Ends(d time.Duration) bool {
	select {
	case <-c.done:
		return true
	case <-time.After(d):
		return false
	}
}

// SignalBy makes End call send to signal the child. Call it before End.
func (c *Child) SignalBy(send func(syscall.Signal) error) { c.send = send }

// End sends the child SIGTERM, and SIGKILL if that fails or the child has not ended after grace. It waits for the
// child, unless SIGKILL fails with an error other than ESRCH. Without SignalBy, SIGKILL goes to the process group
// that the child leads, if any. After Done is closed End does nothing: another process group may have the number.
func (c *Child) End(grace time.Duration) {
	select {
	case <-c.done:
		return
	default:
	}
	if c.send(syscall.SIGTERM) == nil && c.Ends(grace) {
		return
	}
	if err := c.send(syscall.SIGKILL); err == nil || errors.Is(err, syscall.ESRCH) {
		<-c.done
	}
}

// signal sends a signal to the child. SIGKILL goes to the group that the child leads, if it leads one.
func (c *Child) signal(sig syscall.Signal) error {
	if sig == syscall.SIGKILL && c.group {
		_ = syscall.Kill(-c.PID(), sig) // until the child has been waited for, no other group has this id
		return nil
	}
	return c.cmd.Process.Signal(sig) // by pidfd if possible
}
