package agent

import (
	"bytes"
	"context"
	"errors"
	"os/exec"
	"time"
)

// Exec is the argument of the operation "exec": a program or applet of the guest.
type Exec struct {
	Args  []string `json:"args"`
	Stdin string   `json:"stdin,omitempty"`
}

// ExecResult is its result. Output beyond execOutput is cut at its beginning.
type ExecResult struct {
	Status int    `json:"status"` // exit status; -1 = ended by a signal
	Stdout string `json:"stdout"`
	Stderr string `json:"stderr"`
}

const execOutput = 256 << 10

func init() {
	Register("exec", opExec)
}

func opExec(ctx context.Context, a Exec) (any, error) {
	if len(a.Args) == 0 {
		return nil, errors.New("no program named")
	}
	out, errs := Tail{Max: execOutput}, Tail{Max: execOutput}
	cmd := exec.CommandContext(ctx, a.Args[0], a.Args[1:]...)
	cmd.Stdin = bytes.NewReader([]byte(a.Stdin))
	cmd.Stdout, cmd.Stderr = &out, &errs
	cmd.WaitDelay = stopTime - time.Second // for output that its children may hold open; Serve waits longer
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		return nil, err
	}
	return &ExecResult{Status: cmd.ProcessState.ExitCode(), Stdout: string(out.Bytes()), Stderr: string(errs.Bytes())}, nil
}

// Tail is a writer that keeps the last Max bytes.
type Tail struct {
	Max int
	buf []byte
}

// Write never fails.
func (t *Tail) Write(p []byte) (int, error) {
	n := len(p)
	if len(p) > t.Max {
		p = p[len(p)-t.Max:]
	}
	if over := len(t.buf) + len(p) - t.Max; over > 0 {
		t.buf = t.buf[:copy(t.buf, t.buf[over:])]
	}
	t.buf = append(t.buf, p...)
	return n, nil
}

// Bytes is what is kept.
func (t *Tail) Bytes() []byte { return t.buf }
