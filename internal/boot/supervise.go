package boot

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/agent"
	"vnic.dev/vnic/internal/limits"
)

// superviseAgent runs this program as the agent until that ends, and reaps orphans meanwhile. It returns the agent's
// status and the last panicOutput bytes of its stderr.
func superviseAgent(channel *os.File, env agent.Env) (unix.WaitStatus, string, error) {
	er, ew, err := os.Pipe()
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = er.Close() }()
	pr, pw, err := os.Pipe()
	if err != nil {
		return 0, "", errors.Join(err, ew.Close())
	}
	defer func() { _ = pr.Close() }()
	raw, err := json.Marshal(env)
	if err != nil {
		return 0, "", err
	}
	p, err := os.StartProcess("/proc/self/exe", []string{agentName}, &os.ProcAttr{
		Env:   []string{"PATH=/bin:/sbin", "HOME=/tmp"},
		Dir:   "/",
		Files: []*os.File{os.Stdin, os.Stdout, pw, channel, er},
	})
	_ = pw.Close()
	if err != nil {
		return 0, "", errors.Join(fmt.Errorf("start the agent: %w", err), ew.Close())
	}
	pid := p.Pid
	_ = p.Release()
	tail := agent.Tail{Max: panicOutput}
	var wg sync.WaitGroup
	wg.Go(func() {
		_, _ = ew.Write(raw)
		_ = ew.Close()
	})
	wg.Go(func() { _, _ = io.Copy(io.MultiWriter(os.Stderr, &tail), pr) })
	ws, err := reap(pid)
	if err != nil {
		return 0, "", fmt.Errorf("wait for the agent: %w", err)
	}
	_ = pr.SetReadDeadline(time.Now().Add(limits.LastOutput.Here())) // the agent's children may hold the pipe open
	wg.Wait()
	return ws, string(tail.Bytes()), nil
}

func reap(pid int) (unix.WaitStatus, error) {
	for {
		var ws unix.WaitStatus
		got, err := unix.Wait4(-1, &ws, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return 0, err
		case got == pid && (ws.Exited() || ws.Signaled()):
			return ws, nil
		}
	}
}
