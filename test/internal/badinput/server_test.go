package badinput

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"vnic.dev/vnic/internal/machine/machinetest"
	"vnic.dev/vnic/internal/testkit"
)

// server is a vnic serve, seen from outside.
type server struct {
	t      *testing.T
	cmd    *exec.Cmd
	dir    string
	mu     sync.Mutex
	logged bytes.Buffer // under mu: its log
	end    chan error
}

// programEnv is the environment variable with the path of the vnic to test; unset: one that is built from this tree.
const programEnv = "BADINPUT_VNIC"

func serve(t *testing.T, ports int, args ...string) *server {
	t.Helper()
	s := &server{t: t, dir: t.TempDir(), end: make(chan error, 1)}
	args = append([]string{"serve", "--socket-path", s.dir + "/s%d", "--ports", strconv.Itoa(ports), "--gpu-memory", "0",
		"--json"}, args...)
	ctx, cancel := context.WithCancel(context.Background())
	program := os.Getenv(programEnv)
	if program == "" {
		program = machinetest.Program(t, "vnic.dev/vnic/cmd/vnic")
	}
	s.cmd = exec.CommandContext(ctx, program, args...)
	out := testkit.Must(s.cmd.StdoutPipe())(t)
	s.cmd.Stderr = s
	testkit.OK(t, s.cmd.Start())
	t.Cleanup(func() {
		_ = s.cmd.Process.Signal(syscall.SIGTERM)
		err := <-s.end
		cancel()
		if err != nil || t.Failed() {
			text := s.log()
			t.Errorf("vnic serve ended with %v and said at last:\n%s", err, text[max(0, len(text)-4096):])
		}
	})
	var started json.RawMessage
	err := json.NewDecoder(out).Decode(&started)
	go func() { s.end <- s.cmd.Wait() }()
	testkit.OK(t, err)
	return s
}

// Write records the process's log.
func (s *server) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.logged.Write(b)
}

func (s *server) log() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.logged.String()
}

func (s *server) dial(port int) *net.UnixConn {
	s.t.Helper()
	a := &net.UnixAddr{Name: filepath.Join(s.dir, fmt.Sprintf("s%d", port)), Net: "unix"}
	return testkit.Must(net.DialUnix("unix", nil, a))(s.t)
}

// cost is what the process has used.
type cost struct {
	memory int // resident bytes now, without mapped files and shared memory
	peak   int // the most resident bytes since forget, with mapped files and shared memory
	ticks  int // processor time, in units of 10 ms
	lines  int // lines in the log
	files  int // open descriptors
}

func (s *server) cost() (c cost) {
	s.t.Helper()
	status := s.proc("status")
	for name, to := range map[string]*int{"RssAnon:": &c.memory, "VmHWM:": &c.peak} {
		_, rest, _ := strings.Cut(status, name)
		*to = 1024 * testkit.Must(strconv.Atoi(strings.Fields(rest)[0]))(s.t)
	}
	stat := s.proc("stat")
	f := strings.Fields(stat[strings.LastIndex(stat, ")")+1:])
	for _, field := range f[11:13] { // utime, stime
		c.ticks += testkit.Must(strconv.Atoi(field))(s.t)
	}
	c.lines = strings.Count(s.log(), "\n")
	files := testkit.Must(os.ReadDir(fmt.Sprintf("/proc/%d/fd", s.cmd.Process.Pid)))(s.t)
	c.files = len(files)
	return c
}

// forget restarts the measurement of the peak of memory.
func (s *server) forget() {
	s.t.Helper()
	testkit.OK(s.t, os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", s.cmd.Process.Pid), []byte("5"), 0))
}

func (s *server) proc(name string) string {
	s.t.Helper()
	b := testkit.Must(os.ReadFile(fmt.Sprintf("/proc/%d/%s", s.cmd.Process.Pid, name)))(s.t)
	return string(b)
}
