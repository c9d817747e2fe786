package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os/exec"

	"vnic.dev/vnic/internal/limits"
)

// Run runs a program of the guest, or a link to an applet, and waits for its end.
var Run = NewOperation[Exec, ExecResult]("exec")

// Exec has the arguments of Run: the program with its arguments, and the bytes of its stdin.
type Exec struct {
	Args  []string `json:"args"`
	Stdin string   `json:"stdin,omitempty"`
}

// ExecResult is the result of Run, with the last execOutput bytes of each output, or fewer, so that their JSON has at
// most maxText bytes.
type ExecResult struct {
	Status int    `json:"status"` // exit status; -1: a signal ended the program
	Stdout string `json:"stdout"`
	Stderr string `json:"stderr"`
}

const (
	execOutput = 256 << 10
	maxText    = MaxLine * 3 / 8 // two fit in a line, with the rest of the answer
)

var stretch = NewOperation[float64, None]("slow")

// TellSlow raises a guest's limits.Slow to this process's, if that is larger.
func TellSlow(ctx context.Context, c *Client) error {
	ctx, cancel := context.WithTimeout(ctx, limits.Ask.Here())
	defer cancel()
	return stretch.Do(ctx, c, limits.Slow())
}

func init() {
	Run.Serve(runProgram)
	stretch.Serve(func(_ context.Context, n float64) (None, error) {
		limits.Stretch(n)
		return None{}, nil
	})
}

func runProgram(ctx context.Context, a Exec) (r ExecResult, err error) {
	if len(a.Args) == 0 {
		return r, errors.New("no program named")
	}
	out, errs := Tail{Max: execOutput}, Tail{Max: execOutput}
	cmd := exec.CommandContext(ctx, a.Args[0], a.Args[1:]...)
	cmd.Stdin = bytes.NewReader([]byte(a.Stdin))
	cmd.Stdout, cmd.Stderr = &out, &errs
	cmd.WaitDelay = limits.AgentStop.Here() - limits.LastOutput.Here()
	err = cmd.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		return r, err
	}
	return ExecResult{Status: cmd.ProcessState.ExitCode(), Stdout: end(out.Bytes()), Stderr: end(errs.Bytes())}, nil
}

// end returns the end of b whose JSON has at most maxText bytes: a byte may need six.
func end(b []byte) string {
	for {
		j, _ := json.Marshal(string(b)) // a string can always be encoded
		if len(j) <= maxText {
			return string(b)
		}
		b = b[len(b)-len(b)*maxText/len(j):]
	}
}

// Tail is an io.Writer that keeps the last Max bytes.
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

// Bytes returns the stored bytes, valid until the next Write.
func (t *Tail) Bytes() []byte { return t.buf }
