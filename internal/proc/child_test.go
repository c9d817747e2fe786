package proc

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/testkit"
)

// envParent makes this test's program start a child, tell its process id, and wait to be killed.
const envParent = "VNIC_TEST_PARENT"

func parent() {
	c, err := StartChild(exec.Command("sleep", "1000"))
	if err != nil {
		panic(err)
	}
	fmt.Println(c.PID())
	select {}
}

// gone waits until a process has ended.
func gone(t *testing.T, pid int) {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if err == unix.ESRCH {
		return
	}
	testkit.OK(t, err)
	defer unix.Close(fd)
	ended := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(ended, 30_000)
		if err == unix.EINTR {
			continue
		}
		if n != 1 || err != nil {
			t.Fatalf("process %d lives on: %v", pid, err)
		}
		return
	}
}

func TestKilledParentLeavesNoChild(t *testing.T) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), envParent+"=1")
	out, err := cmd.StdoutPipe()
	testkit.OK(t, err)
	testkit.OK(t, cmd.Start())
	line, _ := bufio.NewReader(out).ReadString('\n')
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatalf("the parent said %q", line)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	gone(t, pid)
}

// A child ends at SIGTERM, and one that does not is killed with what it has started.
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
			line, err := bufio.NewReader(r).ReadString('\n')
			testkit.OK(t, err)
			pid, err := strconv.Atoi(strings.TrimSpace(line))
			testkit.OK(t, err)
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
