package qemu

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"

	"vnic.dev/vnic/guest-images/agent"
)

// child is a process that does not outlive this one: the kernel kills it when the thread that forked it ends
// (PR_SET_PDEATHSIG), so that thread is kept until the child has been waited for.
type child struct {
	cmd  *exec.Cmd
	done chan struct{} // closed after Wait
	err  error         // Wait's; set before done is closed
}

// startChild starts cmd in a process group of its own, with /dev/null for the streams that cmd leaves open.
func startChild(cmd *exec.Cmd) (*child, error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	c := &child{cmd: cmd, done: make(chan struct{})}
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

// grace is how long QEMU has to answer, to go after SIGTERM, and what is left of it to be read. There is nothing in a guest
// to be saved, and who presses Ctrl-C does not want to wait.
var grace = time.Second // a variable for tests

// command is a short-lived tool: apt-get, dpkg-deb, a QEMU asked for its version.
type command struct {
	dir    string
	env    []string // added to a minimal environment
	stdout func(line string)
}

// toolError is a tool's failure with what it said.
type toolError struct {
	name   string
	err    error
	stderr string
}

func (e *toolError) Error() string {
	s := fmt.Sprintf("%s: %v", e.name, e.err)
	if said := lastLines([]byte(e.stderr), 4); len(said) > 0 {
		s += ": " + strings.Join(said, "; ")
	}
	return s
}

// words are the tool's own on what went wrong, on one line.
func (e *toolError) words() string {
	for l := range strings.SplitSeq(e.stderr, "\n") {
		if w, ok := strings.CutPrefix(l, "E: "); ok {
			return strings.TrimSpace(agent.Plain(w))
		}
	}
	return strings.Join(lastLines([]byte(e.stderr), 1), "")
}

func (e *toolError) Unwrap() error { return e.err }

// run runs a tool to its end and gives its standard output, or hands it line by line to c.stdout. When ctx ends, the
// tool's whole process group is killed.
func (c command) run(ctx context.Context, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = c.dir
	cmd.Env = append(append(cmd.Environ(), "LC_ALL=C.UTF-8", "LANGUAGE=", "DEBIAN_FRONTEND=noninteractive"), c.env...)
	var out bytes.Buffer
	stderr := agent.Tail{Max: 8 << 10}
	cmd.Stdout, cmd.Stderr = &out, &stderr
	if c.stdout != nil {
		cmd.Stdout = &lineFunc{f: c.stdout}
	}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = grace
	p, err := startChild(cmd)
	if err == nil {
		<-p.done
		err = p.err
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if errors.Is(err, exec.ErrWaitDelay) {
		err = nil // a grandchild held a pipe open; the tool itself ended well
	}
	if err != nil {
		return nil, &toolError{name: name, err: err, stderr: string(stderr.Bytes())}
	}
	return out.Bytes(), nil
}

// lineFunc hands whole lines to f.
type lineFunc struct {
	f   func(string)
	buf []byte
}

func (l *lineFunc) Write(p []byte) (int, error) {
	l.buf = append(l.buf, p...)
	for {
		i := bytes.IndexAny(l.buf, "\r\n")
		if i < 0 {
			return len(p), nil
		}
		l.f(string(l.buf[:i]))
		l.buf = l.buf[i+1:]
	}
}
