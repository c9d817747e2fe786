package servelab

import (
	"context"
	"encoding/json"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"vnic.dev/vnic/internal/proc"
)

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

		GPUPath   string `json:"gpu_path"`
		GPUSocket string `json:"gpu_socket"`
	} `json:"ports"`
}

type server struct {
	*bench
	*proc.Child
	args           []string
	rep            report
	stdout, stderr output
}

func (b *bench) launch(ctx context.Context, args ...string) *server {
	b.Helper()
	s := &server{bench: b, args: args}
	cmd := exec.CommandContext(ctx, b.vnic, append([]string{"serve"}, args...)...)
	cmd.Stdout, cmd.Stderr = &s.stdout, &s.stderr
	var err error
	s.Child, err = proc.StartChild(cmd)
	b.must("vnic serve", err)
	return s
}

// serve starts vnic serve with args and --json, and waits for its report.
func (b *bench) serve(ctx context.Context, args ...string) *server {
	b.Helper()
	s := b.launch(ctx, append(args, "--json")...)
	s.args = args
	if err := s.stdout.until(ctx, s.Child, "report", func(text string) bool {
		return json.Unmarshal([]byte(text), &s.rep) == nil
	}); err != nil {
		s.kill()
		b.Fatalf("vnic serve: %v: %s", err, s.stderr.String())
	}
	return s
}

// startServe starts vnic serve with two ports, unless args have another --ports, and with sockets in b.dir.
func (b *bench) startServe(ctx context.Context, args ...string) *server {
	b.Helper()
	return b.serve(ctx, append([]string{"--socket-path", filepath.Join(b.dir, "nic%d"), "--ports", "2"}, args...)...)
}

func (s *server) term() time.Duration {
	s.Helper()
	begin := time.Now()
	s.must("SIGTERM", syscall.Kill(s.PID(), syscall.SIGTERM))
	<-s.Done()
	if err := s.Err(); err != nil {
		s.Fatalf("vnic serve after SIGTERM: %v: %s", err, s.stderr.String())
	}
	if strings.Contains(s.stderr.String(), "sandbox:") {
		s.Errorf("something that it needs was refused, or is not confined: %s", s.stderr.String())
	}
	return time.Since(begin)
}

// portCounters and direction have some of the fields of `vnic stat --json`.
type portCounters struct {
	Name   string
	Queues []struct{ RX, TX direction }
	Link   struct{ Drops map[string]uint64 }
}

type direction struct {
	Packets uint64
	Drops   uint64
	Device  uint64 `json:"device_bytes"`
	GPUFile uint64 `json:"gpu_file_bytes"`
	Host    uint64 `json:"host_bytes"`
}

// stat returns the counters of the server's ports: the ports of its report, then others, such as the gateway's.
func (s *server) stat(ctx context.Context) []portCounters {
	s.Helper()
	out, err := exec.CommandContext(ctx, s.vnic, "stat", "--json", strconv.Itoa(s.PID())).Output()
	s.must("vnic stat", err)
	var snap struct{ Ports []portCounters }
	if err := json.Unmarshal(out, &snap); err != nil || len(snap.Ports) < len(s.rep.Ports) {
		s.Fatalf("vnic stat: %s: %v", out, err)
	}
	return snap.Ports
}

func (s *server) says(ctx context.Context, want string) {
	s.Helper()
	s.must("vnic serve", s.stderr.says(ctx, s.Child, want))
}

func (s *server) again(ctx context.Context) *server {
	s.Helper()
	s.kill()
	return s.serve(ctx, s.args...)
}

func (s *server) kill() { kill(s.Child) }
