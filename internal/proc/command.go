package proc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"syscall"

	"vnic.dev/vnic/internal/agent"
	"vnic.dev/vnic/internal/limits"
)

// Command configures a short-lived tool.
type Command struct {
	Dir    string
	Env    []string
	Unset  []string          // variables of this process that the tool does not get
	Stdout func(line string) // gets each line of the standard output; nil: Run returns the standard output
}

// ToolError is a tool's failure with the end of its standard error.
type ToolError struct {
	Name   string
	Err    error
	Stderr string
}

func (e *ToolError) Error() string {
	s := fmt.Sprintf("%s: %v", e.Name, e.Err)
	if lines := LastLines([]byte(e.Stderr), 4); len(lines) > 0 {
		s += ": " + strings.Join(lines, "; ")
	}
	return s
}

// Words returns the tool's error message: of Stderr, the first line that begins with "E: " (apt), without this prefix,
// or else the last line that is not blank.
func (e *ToolError) Words() string {
	for l := range strings.SplitSeq(e.Stderr, "\n") {
		if w, ok := strings.CutPrefix(l, "E: "); ok {
			return strings.TrimSpace(agent.Plain(w))
		}
	}
	return strings.Join(LastLines([]byte(e.Stderr), 1), "")
}

// Unwrap returns exec's error.
func (e *ToolError) Unwrap() error { return e.Err }

const stderrKept = 8 << 10

// Run runs a tool to its end and returns its standard output, or passes it to c.Stdout by lines, without an unfinished
// last one. When ctx ends, Run kills the tool's process group and returns ctx's error. The error of a tool that could
// not be started, or failed, is a *ToolError.
func (c Command) Run(ctx context.Context, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = c.Dir
	env := slices.DeleteFunc(cmd.Environ(), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return slices.Contains(c.Unset, name)
	})
	cmd.Env = append(append(env, "LC_ALL=C.UTF-8", "LANGUAGE=", "DEBIAN_FRONTEND=noninteractive"), c.Env...)
	var out bytes.Buffer
	stderr := agent.Tail{Max: stderrKept}
	cmd.Stdout, cmd.Stderr = &out, &stderr
	if c.Stdout != nil {
		cmd.Stdout = &lineFunc{f: c.Stdout}
	}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = limits.LastOutput.Here()
	p, err := StartChild(cmd)
	if err == nil {
		<-p.done
		err = p.err
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if errors.Is(err, exec.ErrWaitDelay) {
		err = nil // a grandchild held a pipe open
	}
	if err != nil {
		return nil, &ToolError{Name: name, Err: err, Stderr: string(stderr.Bytes())}
	}
	return out.Bytes(), nil
}

// LastLines returns up to n last lines of a program's output that are not blank, made safe for a terminal.
func LastLines(output []byte, n int) []string {
	var lines []string
	for l := range strings.SplitSeq(string(output), "\n") {
		if l = strings.TrimSpace(agent.Plain(l)); l != "" {
			lines = append(lines, l)
		}
	}
	return lines[max(0, len(lines)-n):]
}

// lineFunc passes lines, each ended by a newline or a carriage return, to f.
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
