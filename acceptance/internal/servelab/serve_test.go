package servelab

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// report is what `vnic serve --json` prints, as far as it is used here.
type report struct {
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
	cmd    *exec.Cmd
	args   []string
	rep    report
	stderr said
	ended  chan error
}

// said is what a program has said until now.
type said struct {
	mu   sync.Mutex
	text []byte
	more chan struct{} // under mu: closed with the next that it says; nil: nobody waits
}

func (s *said) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text = append(s.text, b...)
	if s.more != nil {
		close(s.more)
		s.more = nil
	}
	return len(b), nil
}

// now is all of it, and a channel that is closed when there is more.
func (s *said) now() (string, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.more == nil {
		s.more = make(chan struct{})
	}
	return string(s.text), s.more
}

func (s *said) String() string {
	text, _ := s.now()
	return text
}

func (b *bench) startServe(ctx context.Context, args ...string) (*server, error) {
	s := &server{bench: b, args: args, ended: make(chan error, 1)}
	args = append([]string{"serve", "--socket-path", filepath.Join(b.dir, "nic%d"), "--ports", "2", "--json"}, args...)
	s.cmd = exec.CommandContext(ctx, b.vnic, args...)
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

// says waits until it has said something on stderr.
func (s *server) says(ctx context.Context, want string) error {
	late := time.After(patience)
	for {
		text, more := s.stderr.now()
		if strings.Contains(text, want) {
			return nil
		}
		select {
		case <-more:
		case <-ctx.Done():
			return ctx.Err()
		case <-late:
			return fmt.Errorf("vnic serve does not say %q: %s", want, text)
		}
	}
}

// again kills it, and starts it with the same arguments.
func (s *server) again(ctx context.Context) (*server, error) {
	s.kill()
	n, err := s.startServe(ctx, s.args...)
	if err != nil {
		return s, err
	}
	return n, nil
}

func (s *server) kill() {
	_ = s.cmd.Process.Kill()
	s.ended <- <-s.ended
}
