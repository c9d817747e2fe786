package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/machine/assets"
	"vnic.dev/vnic/internal/testkit"
)

// children returns the command lines of a process's children; the keys are their pidfds, open until the test ends.
func children(t *testing.T, pid int) map[int]string {
	t.Helper()
	found := map[int]string{}
	for _, path := range testkit.Must(filepath.Glob("/proc/[0-9]*/stat"))(t) {
		b, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:])) // proc_pid_stat(5): state, parent
		if f[1] != strconv.Itoa(pid) {
			continue
		}
		child := testkit.Must(strconv.Atoi(filepath.Base(filepath.Dir(path))))(t)
		fd, err := unix.PidfdOpen(child, 0)
		if errors.Is(err, unix.ESRCH) {
			continue
		}
		testkit.OK(t, err)
		t.Cleanup(func() { _ = unix.Close(fd) })
		cmd, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
		found[fd] = strings.ReplaceAll(string(cmd), "\x00", " ")
	}
	return found
}

// ends reports whether a process ends within testkit.Patience.
func ends(t *testing.T, pidfd int) bool {
	t.Helper()
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, int(testkit.Patience.Milliseconds()))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		testkit.OK(t, err)
		return n == 1
	}
}

// Invariant: sandbox: A killed vnic leaves no broker and no QEMU.
// Invariant: sandbox: A vnic whose broker is killed ends and says so.
func TestKilledVnicLeavesNothing(t *testing.T) {
	dir, err := assets.CacheDir(assets.Options{})
	if err == nil {
		_, err = assets.Fetch(t.Context(), assets.Options{CacheDir: dir, Offline: true, VFIOUser: true})
	}
	for _, tt := range []struct {
		name, ready string // a line that begins with ready is printed when all processes have started
		children    int
		args        []string
	}{
		{"serve", "gateway ", 1, []string{"serve", "--sandbox", "on", "--socket-path", t.TempDir() + "/s"}},
		{"inproc", "stage: transfer", 1, []string{"run", "--sandbox", "on", "--guest", "inproc", "--size", "1M",
			"--pause-at", "transfer"}},
		{"run", "stage: transfer", 3, []string{"run", "--sandbox", "on", "--offline", "--size", "1M", "--pause-at",
			"transfer"}},
		{"boot", "up", 2, []string{"boot", "--sandbox", "on", "--offline", "--", "sh", "-c", "echo up; sleep 1000"}},
	} {
		needs := func(t *testing.T) {
			if tt.children > 1 {
				testkit.Boots(t)
				testkit.OK(t, err)
			}
		}
		t.Run(tt.name, func(t *testing.T) {
			needs(t)
			c := startKillable(t, dir, tt.ready, tt.args)
			if len(c.started) != tt.children {
				t.Errorf("%d processes, not %d: %v", len(c.started), tt.children, c.started)
			}
			for _, cmd := range c.started {
				if strings.Contains(cmd, "qemu-system") && !strings.Contains(cmd, " -sandbox on,") {
					t.Errorf("QEMU has no sandbox: %s", cmd)
				}
			}
			_ = c.Process.Kill()
			c.leavesNothing("signal: killed")
		})
		if tt.name == "run" {
			continue
		}
		t.Run(tt.name+" without its broker", func(t *testing.T) {
			needs(t)
			c := startKillable(t, dir, tt.ready, tt.args)
			for fd, cmd := range c.started {
				if strings.HasSuffix(cmd, " __broker ") {
					testkit.OK(t, unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0))
				}
			}
			c.leavesNothing("exit status 1")
			const end = "vnic: sandbox: the process outside of the sandbox, which opens, connects and ends QEMUs for " +
				"this one, has ended: signal: killed: start this vnic again, or give --sandbox off\n"
			if !strings.HasSuffix(c.output.String(), end) {
				t.Errorf("output: %s", &c.output)
			}
		})
	}
	t.Run("each process gets SIGTERM", func(t *testing.T) { // systemd sends the signal to all processes of a unit
		c := startKillable(t, dir, "gateway ", []string{"serve", "--sandbox", "on", "--socket-path", t.TempDir() + "/s"})
		for fd := range c.started {
			testkit.OK(t, unix.PidfdSendSignal(fd, unix.SIGTERM, nil, 0))
		}
		testkit.OK(t, c.Process.Signal(unix.SIGTERM))
		c.leavesNothing("<nil>")
	})
}

type killable struct {
	*exec.Cmd
	t       *testing.T
	output  strings.Builder
	out     *os.File
	started map[int]string
}

func startKillable(t *testing.T, cache, ready string, args []string) *killable {
	t.Helper()
	c := &killable{Cmd: exec.Command("vnic", args...), t: t}
	c.Env = append(os.Environ(), assets.EnvCache+"="+cache)
	r, w, err := os.Pipe()
	testkit.OK(t, err)
	t.Cleanup(func() { _ = r.Close() })
	c.Stdout, c.Stderr, c.out = w, w, r
	testkit.OK(t, errors.Join(c.Start(), w.Close()))
	lines := bufio.NewScanner(io.TeeReader(r, &c.output))
	for lines.Scan() && !strings.HasPrefix(strings.TrimSpace(lines.Text()), ready) {
	}
	c.started = children(t, c.Process.Pid)
	return c
}

// leavesNothing waits for the end of vnic, compares the text of Wait's error with status, and reports an error if one
// of vnic's children (started) does not end.
func (c *killable) leavesNothing(status string) {
	c.t.Helper()
	testkit.OK(c.t, c.out.SetReadDeadline(time.Now().Add(testkit.Patience)))
	testkit.Must(io.Copy(&c.output, c.out))(c.t)
	if err := c.Wait(); fmt.Sprint(err) != status {
		c.t.Errorf("%v, not %s: %s", err, status, &c.output)
	}
	for fd, cmd := range c.started {
		if !ends(c.t, fd) {
			c.t.Errorf("still there: %s", cmd)
			_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
		}
	}
}
