package guestexec

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/agent"
	"vnic.dev/vnic/internal/limits"
)

// grace, times limits.Slow, is how long the guest waits for more output after a program has ended, while a child
// process holds its output open.
const grace = limits.SessionOutput

type running struct {
	id      uint64
	stdin   *os.File // the terminal's master, or the write end of a pipe
	tty     bool
	streams map[int]*stream
	exited  chan struct{}
}

type stream struct {
	from   *os.File
	credit *credit
}

var sessions = struct {
	sync.Mutex
	m map[uint64]*running
}{m: map[uint64]*running{}}

// Ops registers the guest's operations with package agent.
func Ops() {
	opRun.Serve(runProgram)
	opInput.Serve(giveInput)
	opCredit.Serve(giveCredit)
	opSize.Serve(setTerminalSize)
}

func lookup(id uint64) (*running, error) {
	sessions.Lock()
	defer sessions.Unlock()
	r := sessions.m[id]
	if r == nil {
		return nil, fmt.Errorf("no session %d", id)
	}
	return r, nil
}

// runProgram returns after the program, which it kills when ctx ends, has ended, and then for each output stream one
// of these: it has ended, no more of it came for grace, it could not be sent, or ctx ended while there was no credit.
func runProgram(ctx context.Context, a runArgs) (status Status, err error) {
	if len(a.Args) == 0 {
		return status, errors.New("no program named")
	}
	path, err := Look(a.Path, a.Env)
	if err != nil {
		return status, err
	}
	cmd := &exec.Cmd{Path: path, Args: a.Args, Env: a.Env, Dir: cmp.Or(a.Dir, "/")}
	r, theirs, err := connect(&a, cmd)
	if err != nil {
		return status, err
	}
	defer r.close()
	err = cmd.Start()
	for _, f := range theirs {
		_ = f.Close()
	}
	if err != nil {
		return status, err
	}
	if err := r.enter(); err != nil {
		_ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL)
		return status, errors.Join(err, cmd.Wait())
	}
	defer r.leave()
	_ = agent.Progress(ctx, report{})
	stop := context.AfterFunc(ctx, func() { _ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL) })
	var wg sync.WaitGroup
	for n, s := range r.streams {
		wg.Go(func() { r.pump(ctx, n, s) })
	}
	err = cmd.Wait()
	stop()
	close(r.exited)
	for _, s := range r.streams {
		_ = s.from.SetReadDeadline(time.Now().Add(grace.Here()))
	}
	wg.Wait()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		return status, err
	}
	ws := cmd.ProcessState.Sys().(syscall.WaitStatus)
	if ws.Signaled() {
		return Status{Signal: int(ws.Signal())}, nil
	}
	return Status{Code: ws.ExitStatus()}, nil
}

// Look finds a program: in PATH of env (the last one), if its name has no slash. Else it returns the name unchecked.
func Look(name string, env []string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	var path string
	for _, e := range env {
		if v, ok := strings.CutPrefix(e, "PATH="); ok {
			path = v
		}
	}
	for _, dir := range filepath.SplitList(path) {
		p := filepath.Join(dir, name)
		if st, err := os.Stat(p); err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0 {
			return p, nil
		}
	}
	return "", fmt.Errorf("%s: not in the guest's PATH, %s: %w", name, path, fs.ErrNotExist)
}

// The caller closes theirs, the program's ends, after the start.
func connect(a *runArgs, cmd *exec.Cmd) (r *running, theirs []*os.File, err error) {
	r = &running{id: a.ID, tty: a.TTY, streams: map[int]*stream{}, exited: make(chan struct{})}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if a.TTY {
		master, slave, err := openTerminal(a.Size)
		if err != nil {
			return nil, nil, err
		}
		cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
		cmd.SysProcAttr.Setctty = true // the terminal is descriptor 0
		r.stdin = master
		r.streams[stdout] = &stream{from: master, credit: newCredit(window)}
		return r, []*os.File{slave}, nil
	}
	defer func() {
		if err != nil {
			r.close()
			for _, f := range theirs {
				_ = f.Close()
			}
		}
	}()
	in, w, err := os.Pipe()
	if err != nil {
		return r, theirs, err
	}
	r.stdin, cmd.Stdin, theirs = w, in, append(theirs, in)
	for _, n := range []int{stdout, stderr} {
		from, w, err := os.Pipe()
		if err != nil {
			return r, theirs, err
		}
		r.streams[n] = &stream{from: from, credit: newCredit(window)}
		theirs = append(theirs, w)
	}
	cmd.Stdout, cmd.Stderr = theirs[1], theirs[2]
	return r, theirs, nil
}

func (r *running) close() {
	if r.stdin != nil {
		_ = r.stdin.Close()
	}
	for _, s := range r.streams {
		_ = s.from.Close() // with a terminal, the second Close of its master
	}
}

func (r *running) enter() error {
	sessions.Lock()
	defer sessions.Unlock()
	if sessions.m[r.id] != nil {
		return fmt.Errorf("session %d is running", r.id)
	}
	sessions.m[r.id] = r
	return nil
}

func (r *running) leave() {
	sessions.Lock()
	defer sessions.Unlock()
	delete(sessions.m, r.id)
}

func (r *running) pump(ctx context.Context, n int, s *stream) {
	buf := make([]byte, chunk)
	for {
		room := s.credit.take(ctx, len(buf))
		if room == 0 {
			return
		}
		select {
		case <-r.exited:
			_ = s.from.SetReadDeadline(time.Now().Add(grace.Here()))
		default:
		}
		begin := time.Now()
		got, err := s.from.Read(buf[:room])
		s.credit.give(room - got)
		if errors.Is(err, os.ErrDeadlineExceeded) && time.Since(begin) < grace.Here()/2 {
			continue
		}
		// the end of the output: io.EOF of a pipe, EIO of a terminal
		if got > 0 && agent.Progress(ctx, report{Stream: n, Data: buf[:got]}) != nil || err != nil {
			return
		}
	}
}

// giveInput returns when the program's pipe or terminal has taken the bytes, or with an error. With a.End it then
// closes the pipe, or writes an end of file to the terminal.
func giveInput(ctx context.Context, a inputArgs) (none agent.None, err error) {
	r, err := lookup(a.ID)
	if err != nil {
		return none, err
	}
	stop := context.AfterFunc(ctx, func() { _ = r.stdin.SetWriteDeadline(time.Unix(1, 0)) })
	defer stop()
	if _, err := r.stdin.Write(a.Data); err != nil {
		return none, err
	}
	switch {
	case a.End && r.tty:
		_, err = r.stdin.Write([]byte{4}) // VEOF
	case a.End:
		err = r.stdin.Close()
	}
	return none, err
}

func giveCredit(_ context.Context, a creditArgs) (none agent.None, err error) {
	r, err := lookup(a.ID)
	if err != nil {
		return none, err
	}
	s := r.streams[a.Stream]
	if s == nil || a.Bytes < 0 || a.Bytes > window {
		return none, fmt.Errorf("session %d: %d bytes of stream %d", a.ID, a.Bytes, a.Stream)
	}
	s.credit.give(a.Bytes)
	return none, nil
}

func setTerminalSize(_ context.Context, a sizeArgs) (none agent.None, err error) {
	r, err := lookup(a.ID)
	if err != nil {
		return none, err
	}
	if !r.tty {
		return none, fmt.Errorf("session %d has no terminal", a.ID)
	}
	return none, setSize(r.stdin, a.Size)
}
