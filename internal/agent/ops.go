package agent

import (
	"bytes"
	"context"
	"errors"
	"os/exec"

	"vnic.dev/vnic/internal/limits"
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

// opSlow has the guest's limits follow the host's, which may have grown since the boot began.
const opSlow = "slow"

// TellSlow has a guest's limits follow this process's.
func TellSlow(ctx context.Context, c *Client) error {
	ctx, cancel := context.WithTimeout(ctx, limits.Ask.Here())
	defer cancel()
	return c.Call(ctx, opSlow, limits.Slow(), nil)
}

func init() {
	Register("exec", opExec)
	Register(opSlow, func(_ context.Context, n float64) (any, error) {
		limits.Stretch(n)
		return nil, nil
	})
}

func opExec(ctx context.Context, a Exec) (any, error) {
	if len(a.Args) == 0 {
		return nil, errors.New("no program named")
	}
	out, errs := Tail{Max: execOutput}, Tail{Max: execOutput}
	cmd := exec.CommandContext(ctx, a.Args[0], a.Args[1:]...)
	cmd.Stdin = bytes.NewReader([]byte(a.Stdin))
	cmd.Stdout, cmd.Stderr = &out, &errs
	// For output that its children may hold open; Serve waits longer.
	cmd.WaitDelay = limits.AgentStop.Here() - limits.LastOutput.Here()
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
