package proc

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/testkit"
)

// envParent makes this test's program start a child, print its process id, and wait to be killed.
const envParent = "VNIC_TEST_PARENT"

func parent() {
	c, err := StartChild(exec.Command("sleep", "1000"))
	if err != nil {
		panic(err)
	}
	fmt.Println(c.PID())
	select {}
}

func gone(t *testing.T, pid int) {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if err == unix.ESRCH {
		return
	}
	testkit.OK(t, err)
	defer unix.Close(fd)
	if !readable(fd) {
		t.Fatalf("process %d lives on", pid)
	}
}

// readable reports whether fd becomes readable within half a minute; after a signal it waits anew. A pidfd is readable
// when its process has ended.
func readable(fd int) bool {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 30_000)
	for err == unix.EINTR {
		n, err = unix.Poll(fds, 30_000)
	}
	return n == 1
}

// again starts this test's program with one more environment variable, calls look when the program has written a line,
// kills the program, and returns the line.
func again(t *testing.T, env string, look func()) string {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), env)
	out := testkit.Must(cmd.StdoutPipe())(t)
	testkit.OK(t, cmd.Start())
	line := testkit.Must(bufio.NewReader(out).ReadString('\n'))(t)
	look()
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	return strings.TrimSpace(line)
}

func TestKilledParentLeavesNoChild(t *testing.T) {
	pid := testkit.Must(strconv.Atoi(again(t, envParent+"=1", func() {})))(t)
	gone(t, pid)
}

func TestChildIsEnded(t *testing.T) {
	for name, c := range map[string]struct {
		script string
		grace  time.Duration
		ended  string
	}{
		"that obeys":    {"echo $$; exec sleep 1000", time.Minute, "signal: terminated"},
		"that does not": {"trap '' TERM; sleep 1000 & echo $!; wait; wait", 20 * time.Millisecond, "signal: killed"},
	} {
		t.Run(name, func(t *testing.T) {
			testkit.LeavesNothing(t)
			cmd := exec.Command("sh", "-c", c.script)
			r, w, err := os.Pipe()
			testkit.OK(t, err)
			defer r.Close()
			cmd.Stdout = w
			child, err := StartChild(cmd)
			_ = w.Close()
			testkit.OK(t, err)
			line := testkit.Must(bufio.NewReader(r).ReadString('\n'))(t)
			pid := testkit.Must(strconv.Atoi(strings.TrimSpace(line)))(t)
			if child.Ends(0) {
				t.Error("ended before it was told to")
			}
			child.End(c.grace)
			<-child.Done()
			if !child.Ends(time.Minute) || child.Err() == nil || child.Err().Error() != c.ended {
				t.Errorf("ended by %v, want %s", child.Err(), c.ended)
			}
			gone(t, pid)
		})
	}
	if _, err := StartChild(exec.Command("/no/such/program")); err == nil {
		t.Error("no error")
	}
}

func TestEndSignalsNobodyAfterTheWait(t *testing.T) {
	child := testkit.Must(StartChild(exec.Command("true")))(t)
	<-child.Done()
	child.SignalBy(func(sig syscall.Signal) error {
		t.Error("sends", sig)
		return nil
	})
	child.End(0)
}
