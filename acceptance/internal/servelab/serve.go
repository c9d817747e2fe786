package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// report is what `vnic serve --json` prints, as far as it is used here.
type report struct {
	NIC        string `json:"nic"`
	KernelArgs string `json:"kernel_args"`
	Gateway    string `json:"gateway"`
	Ports      []struct {
		Socket string   `json:"socket"`
		Addr4  string   `json:"addr4"`
		QEMU   []string `json:"qemu"`
	} `json:"ports"`
}

// server is vnic serve.
type server struct {
	cmd    *exec.Cmd
	rep    report
	stderr bytes.Buffer
	ended  chan error
}

func startServe(ctx context.Context, args ...string) (*server, error) {
	s := &server{ended: make(chan error, 1)}
	args = append([]string{"serve", "--socket-path", filepath.Join(*dir, "nic%d"), "--ports", "2", "--json"}, args...)
	s.cmd = exec.CommandContext(ctx, *bin, args...)
	s.cmd.Stderr = &s.stderr
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := s.cmd.StdoutPipe()
	if err == nil {
		err = s.cmd.Start()
	}
	if err != nil {
		return nil, err
	}
	err = json.NewDecoder(out).Decode(&s.rep)
	go func() { s.ended <- s.cmd.Wait() }()
	if err != nil {
		s.kill()
		return nil, fmt.Errorf("vnic serve: %w: %s", err, s.stderr.String())
	}
	return s, nil
}

// term ends it, and says how long that took.
func (s *server) term() (time.Duration, error) {
	begin := time.Now()
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return 0, err
	}
	err := <-s.ended
	s.ended <- err
	if err != nil {
		err = fmt.Errorf("vnic serve after SIGTERM: %w: %s", err, s.stderr.String())
	}
	return time.Since(begin), err
}

func (s *server) kill() {
	_ = s.cmd.Process.Kill()
	s.ended <- <-s.ended
}
