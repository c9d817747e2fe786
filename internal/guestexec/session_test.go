package guestexec

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"vnic.dev/vnic/internal/agent"
	"vnic.dev/vnic/internal/testkit"
)

func TestMain(m *testing.M) {
	Ops()
	m.Run()
}

func link(t *testing.T) *agent.Client {
	t.Helper()
	ignore := goleak.IgnoreCurrent()
	host, guest := net.Pipe()
	c := agent.NewClient(host)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- agent.Serve(ctx, guest, agent.Env{}) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; errors.Is(err, agent.ErrBusy) {
			t.Error(err)
		}
		_ = c.Close()
		_ = guest.Close()
		goleak.VerifyNone(t, ignore)
	})
	return c
}

var env = []string{"PATH=/usr/bin:/bin", "X=y"}

func sh(script string, args ...string) Command {
	return Command{Path: "sh", Args: append([]string{"sh", "-c", script, "sh"}, args...), Env: env}
}

func TestOutputInputAndStatusArePassedOn(t *testing.T) {
	c := link(t)
	for name, tt := range map[string]struct {
		script, in  string
		out, errs   string
		code, signl int
	}{
		"status":      {"exit 7", "", "", "", 7, 0},
		"both":        {"echo out; echo err >&2", "", "out\n", "err\n", 0, 0},
		"no newline":  {"printf 'a\\000b'", "", "a\x00b", "", 0, 0},
		"input":       {"cat", "some\r\ninput", "some\r\ninput", "", 0, 0},
		"environment": {"echo $X; pwd", "", "y\n/\n", "", 0, 0},
		"signal":      {"kill -SEGV $$", "", "", "", 0, 11},
		"unread":      {"exit 3", strings.Repeat("x", 1<<20), "", "", 3, 0},
	} {
		var out, errs bytes.Buffer
		cmd := sh(tt.script)
		cmd.Stdout, cmd.Stderr, cmd.Stdin = &out, &errs, strings.NewReader(tt.in)
		st, err := Run(t.Context(), c, cmd)
		if err != nil || st != (Status{tt.code, tt.signl}) || out.String() != tt.out || errs.String() != tt.errs {
			t.Errorf("%s: %+v, %v, %q, %q", name, st, err, out.String(), errs.String())
		}
	}
	if st, err := Run(t.Context(), c, sh("cat; exit 4")); err != nil || st.Exit() != 4 {
		t.Errorf("without streams: %+v, %v", st, err)
	}
	testkit.Equal(t, "status of a signal", (Status{Signal: 9}).Exit(), 137)
	var remote *agent.RemoteError
	for _, path := range []string{"/no/such/program", "nosuchprogram", "/"} {
		if _, err := Run(t.Context(), c, Command{Path: path, Args: []string{"x"}, Env: env}); !errors.As(err, &remote) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// Invariant: vnic boot: A program's output and exit status reach the host unchanged, with either NIC.
func TestMuchComesOutAsItIs(t *testing.T) {
	c := link(t)
	in := make([]byte, 5*window/2+1)
	_, _ = rand.Read(in)
	var out, errs bytes.Buffer
	cmd := sh("tee /dev/stderr")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(in), &out, &errs
	if st, err := Run(t.Context(), c, cmd); err != nil || st.Code != 0 {
		t.Fatal(st, err)
	}
	if !bytes.Equal(out.Bytes(), in) || !bytes.Equal(errs.Bytes(), in) {
		t.Errorf("%d bytes in, %d and %d out", len(in), out.Len(), errs.Len())
	}
}

type stuck struct {
	begun, free chan struct{}
	n           int
}

func (s *stuck) Write(b []byte) (int, error) {
	if s.n == 0 {
		close(s.begun)
	}
	<-s.free
	s.n += len(b)
	return len(b), nil
}

// Invariant: vnic boot: A host that does not read stops the program, and a guest that sends more than it may
// is an error.
func TestSlowHostHoldsTheProgramUp(t *testing.T) {
	c := link(t)
	const size = 4 * window
	w := &stuck{begun: make(chan struct{}), free: make(chan struct{})}
	cmd := sh("head -c " + strconv.Itoa(size) + " /dev/zero; echo done >&2")
	var errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = w, &errs
	done := make(chan error, 1)
	go func() {
		_, err := Run(t.Context(), c, cmd)
		done <- err
	}()
	<-w.begun
	var out bytes.Buffer
	other := sh("echo here")
	other.Stdout = &out
	if _, err := Run(t.Context(), c, other); err != nil || out.String() != "here\n" {
		t.Errorf("%q, %v", out.String(), err)
	}
	select {
	case err := <-done:
		t.Errorf("ended, though nobody reads: %v", err)
	default:
	}
	close(w.free)
	if err := <-done; err != nil || w.n != size || errs.String() != "done\n" {
		t.Errorf("%d bytes of %d, %q, %v", w.n, size, errs.String(), err)
	}
}

func TestCancelEndsTheProgram(t *testing.T) {
	c := link(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("enough")
	r, w := io.Pipe()
	cmd := sh("echo up; sleep 1000")
	cmd.Stdout = w
	go func() {
		b := make([]byte, 3)
		_, _ = io.ReadFull(r, b)
		cancel(why)
	}()
	testkit.ErrorIs(t, testkit.Err(Run(ctx, c, cmd)), why)
	if st, err := Run(t.Context(), c, sh("exit 5")); err != nil || st.Code != 5 {
		t.Errorf("%+v, %v", st, err)
	}
}

// Run returns after the program has ended, even if a child process keeps the output open.
func TestChildThatGoesOnKeepsNobody(t *testing.T) {
	c := link(t)
	var out bytes.Buffer
	cmd := sh("sleep 1000 & echo $!")
	cmd.Stdout = &out
	if st, err := Run(t.Context(), c, cmd); err != nil || st.Code != 0 {
		t.Errorf("%+v, %v", st, err)
	}
	var pid int
	if err := json.Unmarshal(out.Bytes(), &pid); err != nil || pid < 2 {
		t.Fatalf("%q, %v", out.String(), err)
	}
	p := testkit.Must(os.FindProcess(pid))(t)
	_ = p.Kill()
}

// Invariant: vnic boot: A program on a terminal has its own session and the terminal's size.
func TestTerminalHasASessionASizeAndNewSizes(t *testing.T) {
	c := link(t)
	var out bytes.Buffer
	sizes := make(chan Size, 1)
	r, w := io.Pipe()
	cmd := sh("trap 'stty size; exit 9' WINCH; test -t 0 && test -t 1 && test -t 2 && stty size; : > /dev/tty && tty; " +
		"echo ready; read x; read x")
	cmd.TTY, cmd.Size, cmd.Resize, cmd.Stdin = true, Size{Rows: 11, Cols: 22}, sizes, r
	seen := make(chan struct{})
	cmd.Stdout = writer(func(b []byte) {
		before := strings.Contains(out.String(), "ready")
		out.Write(b)
		if !before && strings.Contains(out.String(), "ready") {
			close(seen)
		}
	})
	go func() {
		<-seen
		sizes <- Size{Rows: 33, Cols: 44}
	}()
	st, err := Run(t.Context(), c, cmd)
	if err != nil || st.Code != 9 {
		t.Errorf("%+v, %v, %q", st, err, out.String())
	}
	_ = w.Close()
	got := strings.ReplaceAll(out.String(), "\r\n", "\n")
	if !strings.HasPrefix(got, "11 22\n/dev/pts/") || !strings.HasSuffix(got, "ready\n33 44\n") {
		t.Errorf("%q", got)
	}
}

type writer func([]byte)

func (w writer) Write(b []byte) (int, error) { w(b); return len(b), nil }

func TestInterruptAtTheTerminalIsTheProgramsOwn(t *testing.T) {
	c := link(t)
	r, w := io.Pipe()
	var out bytes.Buffer
	cmd := sh("echo ready; exec sleep 1000")
	cmd.TTY, cmd.Size, cmd.Stdin = true, Size{24, 80}, r
	once := false
	cmd.Stdout = writer(func(b []byte) {
		out.Write(b)
		if !once && strings.Contains(out.String(), "ready") {
			once = true
			go func() { _, _ = w.Write([]byte{3}) }()
		}
	})
	st, err := Run(t.Context(), c, cmd)
	if err != nil || st.Signal != 2 {
		t.Errorf("%+v, %v, %q", st, err, out.String())
	}
}

// Invariant: vnic boot: A host that does not read stops the program, and a guest that sends more than it may
// is an error.
func TestGuestThatSendsTooMuchIsFoundOut(t *testing.T) {
	for name, tt := range map[string]struct {
		reports []any
		flood   bool
	}{
		"flood": {[]any{report{Stream: 1, Data: make([]byte, window)}, report{Stream: 1, Data: make([]byte, window)}},
			true},
		"nonsense": {[]any{"text"}, false},
	} {
		agent.Register("session", func(ctx context.Context, _ json.RawMessage) (any, error) {
			for _, r := range tt.reports {
				if err := agent.Progress(ctx, r); err != nil {
					return nil, err
				}
			}
			<-ctx.Done()
			return nil, ctx.Err()
		})
		t.Run(name, func(t *testing.T) {
			c := link(t)
			w := &stuck{begun: make(chan struct{}), free: make(chan struct{})}
			_, err := Run(t.Context(), c, Command{Path: "x", Args: []string{"x"}, Stdout: w})
			if err == nil || errors.Is(err, ErrFlood) != tt.flood {
				t.Error(err)
			}
			close(w.free)
		})
	}
	Ops()
}

func TestBadRequestsAreRefused(t *testing.T) {
	c := link(t)
	var remote *agent.RemoteError
	ctx := t.Context()
	for op, err := range map[string]error{"run": opRun.Do(ctx, c, runArgs{ID: 1, Path: "sh"}),
		"input":  opInput.Do(ctx, c, inputArgs{ID: 77}),
		"credit": opCredit.Do(ctx, c, creditArgs{ID: 77, Stream: 1, Bytes: 1}),
		"size":   opSize.Do(ctx, c, sizeArgs{ID: 77}),
	} {
		if !errors.As(err, &remote) {
			t.Errorf("%s: %v", op, err)
		}
	}
}
