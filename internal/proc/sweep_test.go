package proc

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/testkit"
)

// envSweeper names the variable with the directory that this test's program sweeps when it is killed.
const envSweeper = "VNIC_TEST_SWEEPER"

func sweeper() {
	_ = Sweep(os.Getenv(envSweeper))
	_, _ = os.Stdout.WriteString("swept\n")
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

// Invariant: assets: A fetch that is killed leaves no directory of its work, if a shell can be
// started.
func TestSweepRemovesWhatAKilledProcessLeaves(t *testing.T) {
	parent := t.TempDir()
	dir := filepath.Join(parent, "a b")
	testkit.OK(t, os.MkdirAll(filepath.Join(dir, "c"), 0o755))
	watch, err := unix.InotifyInit1(unix.IN_CLOEXEC)
	testkit.OK(t, err)
	defer unix.Close(watch)
	_, err = unix.InotifyAddWatch(watch, parent, unix.IN_DELETE)
	testkit.OK(t, err)
	again(t, envSweeper+"="+dir, func() {
		if _, err := os.Stat(dir); err != nil {
			t.Errorf("swept too early: %v", err)
		}
	})
	if !readable(watch) {
		t.Fatal("the directory of a killed process is still there")
	}
}
