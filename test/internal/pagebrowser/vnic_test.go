//go:build browser

package pagebrowser

import (
	"bufio"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

type vnic struct {
	t     *testing.T
	cmd   *exec.Cmd
	url   string      // of its page
	lines chan string // of stderr; closed at its end
	done  chan error
}

// start starts a vnic that serves its page on a free port, and kills it when the test ends.
func start(t *testing.T, args ...string) *vnic {
	t.Helper()
	return startAt(t, "localhost:0", args...)
}

func startAt(t *testing.T, addr string, args ...string) *vnic {
	t.Helper()
	v := &vnic{t: t, lines: make(chan string, 1000), done: make(chan error, 1)}
	v.cmd = exec.CommandContext(t.Context(), os.Getenv("VNIC"), append(args, "--http", addr)...)
	v.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	errs, err := v.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := v.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		for s := bufio.NewScanner(errs); s.Scan(); {
			v.lines <- s.Text()
		}
		close(v.lines)
		v.done <- v.cmd.Wait()
	}()
	t.Cleanup(func() { v.end(syscall.SIGKILL) })
	v.url = strings.TrimPrefix(v.waits("note: page at "), "note: page at ")
	return v
}

// waits takes lines of stderr until one has this beginning, and returns that. The test fails after a minute.
func (v *vnic) waits(begin string) string {
	v.t.Helper()
	var all []string
	limit := time.After(time.Minute)
	for {
		select {
		case l, ok := <-v.lines:
			if !ok {
				v.t.Fatalf("it has ended without %q: %q", begin, all)
			}
			if all = append(all, l); strings.HasPrefix(l, begin) {
				return l
			}
		case <-limit:
			v.t.Fatalf("no %q in a minute: %q", begin, all)
		}
	}
}

// end sends vnic a signal and waits until vnic has ended. After the first call it does nothing.
func (v *vnic) end(s syscall.Signal) {
	if v.done == nil {
		return
	}
	_ = v.cmd.Process.Signal(s)
	for range v.lines {
	}
	<-v.done
	v.done = nil
}

func (v *vnic) set(args ...string) {
	v.t.Helper()
	if b, err := exec.Command(os.Getenv("VNIC"), append([]string{"lab", "set"}, args...)...).CombinedOutput(); err != nil {
		v.t.Fatalf("vnic lab set %q: %v: %s", args, err, b)
	}
}
