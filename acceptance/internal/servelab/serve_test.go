package servelab

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"vnic.dev/vnic/internal/proc"
)

// report is what `vnic serve --json` prints, as far as it is used here.
type report struct {
	Schema     int    `json:"schema"`
	Bytes      uint64 `json:"port_bytes"`
	NIC        string `json:"nic"`
	KernelArgs string `json:"kernel_args"`
	Gateway    string `json:"gateway"`
	Ports      []struct {
		Name   string   `json:"name"`
		Socket string   `json:"socket"`
		MAC    string   `json:"mac"`
		Addr4  string   `json:"addr4"`
		Addr6  string   `json:"addr6"`
		QEMU   []string `json:"qemu"`
	} `json:"ports"`
}

// server is vnic serve.
type server struct {
	*bench
	*proc.Child
	args           []string
	rep            report
	stdout, stderr said
}

// launch starts vnic serve.
func (b *bench) launch(ctx context.Context, args ...string) (s *server, err error) {
	s = &server{bench: b, args: args}
	cmd := exec.CommandContext(ctx, b.vnic, append([]string{"serve"}, args...)...)
	cmd.Stdout, cmd.Stderr = &s.stdout, &s.stderr
	s.Child, err = proc.StartChild(cmd)
	return s, err
}

// serve is launch, with the report of --json.
func (b *bench) serve(ctx context.Context, args ...string) (*server, error) {
	s, err := b.launch(ctx, append(args, "--json")...)
	if err != nil {
		return nil, err
	}
	if err := s.stdout.until(ctx, s.Child, "report", func(text string) bool {
		return json.Unmarshal([]byte(text), &s.rep) == nil
	}); err != nil {
		s.kill()
		return nil, fmt.Errorf("vnic serve: %w: %s", err, s.stderr.String())
	}
	s.args = args
	return s, nil
}

// startServe serves two ports.
func (b *bench) startServe(ctx context.Context, args ...string) (*server, error) {
	return b.serve(ctx, append([]string{"--socket-path", filepath.Join(b.dir, "nic%d"), "--ports", "2"}, args...)...)
}

// term ends it, and says how long that took.
func (s *server) term() (time.Duration, error) {
	begin := time.Now()
	if err := syscall.Kill(s.PID(), syscall.SIGTERM); err != nil {
		return 0, err
	}
	<-s.Done()
	err := s.Err()
	if err != nil {
		err = fmt.Errorf("vnic serve after SIGTERM: %w: %s", err, s.stderr.String())
	}
	return time.Since(begin), err
}

// says waits until it has said something on stderr.
func (s *server) says(ctx context.Context, want string) error {
	return s.stderr.says(ctx, s.Child, want)
}

// again kills it, and starts it with the same arguments.
func (s *server) again(ctx context.Context) (*server, error) {
	s.kill()
	n, err := s.serve(ctx, s.args...)
	if err != nil {
		return s, err
	}
	return n, nil
}

func (s *server) kill() { kill(s.Child) }
