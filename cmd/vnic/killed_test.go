package main

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/assets"
	"vnic.dev/vnic/internal/testkit"
)

// children are the processes that a process has started, each by a pidfd and by its command line.
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

// ends waits for the end of a process.
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

// What a vnic has started ends when it is killed, in its sandbox too: the broker, and QEMUs. (Landlock's
// scope of signals would keep the kernel from ending them.)
//
// Invariant: sandbox: A killed vnic leaves no broker and no QEMU.
func TestKilledVnicLeavesNothing(t *testing.T) {
	dir, err := assets.CacheDir(assets.Options{})
	if err == nil {
		_, err = assets.Fetch(t.Context(), assets.Options{CacheDir: dir, Offline: true, VFIOUser: true})
	}
	for _, tt := range []struct {
		name, ready string // what it says when all is there
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
		t.Run(tt.name, func(t *testing.T) {
			if tt.children > 1 && (testing.Short() || err != nil) {
				t.Skipf("QEMU in -short, or none without the network: %v", err)
			}
			c := exec.Command("vnic", tt.args...)
			c.Env = append(os.Environ(), assets.EnvCache+"="+dir)
			r, w, err := os.Pipe()
			testkit.OK(t, err)
			defer r.Close()
			c.Stdout, c.Stderr = w, w
			testkit.OK(t, errors.Join(c.Start(), w.Close()))
			var said strings.Builder
			lines := bufio.NewScanner(io.TeeReader(r, &said))
			for lines.Scan() && !strings.HasPrefix(strings.TrimSpace(lines.Text()), tt.ready) {
			}
			started := children(t, c.Process.Pid)
			if len(started) != tt.children {
				t.Errorf("%d processes, not %d: %v", len(started), tt.children, started)
			}
			for _, cmd := range started {
				if strings.Contains(cmd, "qemu-system") && !strings.Contains(cmd, " -sandbox on,") {
					t.Errorf("QEMU has no sandbox: %s", cmd)
				}
			}
			_ = c.Process.Kill()
			if err := c.Wait(); err == nil || err.Error() != "signal: killed" {
				t.Errorf("%v: %s", err, &said)
			}
			for fd, cmd := range started {
				if !ends(t, fd) {
					t.Errorf("still there: %s", cmd)
					_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
				}
			}
		})
	}
}
