package proc

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/testkit"
)

// envSweeper makes this test's program make a directory to be swept, say so, and wait to be killed.
const envSweeper = "VNIC_TEST_SWEEPER"

func sweeper() {
	_ = Sweep(os.Getenv(envSweeper))
	_, _ = os.Stdout.WriteString("x")
	select {}
}

func TestSweepRemovesNow(t *testing.T) {
	testkit.LeavesNothing(t)
	dir := filepath.Join(t.TempDir(), "a b")
	testkit.OK(t, os.MkdirAll(filepath.Join(dir, "c"), 0o755))
	Sweep(dir)()
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("still there: %v", err)
	}
}

// Invariant: assets: A fetch that is killed leaves nothing.
func TestSweepRemovesWhatAKilledProcessLeaves(t *testing.T) {
	parent := t.TempDir()
	dir := filepath.Join(parent, "a b")
	testkit.OK(t, os.MkdirAll(filepath.Join(dir, "c"), 0o755))
	watch, err := unix.InotifyInit1(unix.IN_CLOEXEC)
	testkit.OK(t, err)
	defer unix.Close(watch)
	if _, err := unix.InotifyAddWatch(watch, parent, unix.IN_DELETE); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), envSweeper+"="+dir)
	out, err := cmd.StdoutPipe()
	testkit.OK(t, err)
	testkit.OK(t, cmd.Start())
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); err != nil {
		t.Fatalf("swept too early: %v", err)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	gone := []unix.PollFd{{Fd: int32(watch), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(gone, 30_000)
		if err == unix.EINTR {
			continue
		}
		if n != 1 || err != nil {
			t.Fatalf("the directory of a killed process is still there: %v", err)
		}
		break
	}
}
