package qemu

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/machine/assets"
	"vnic.dev/vnic/internal/testkit"
)

// envVictim makes this program start a guest and wait; its value is the path of the guest's program.
const envVictim = "VNIC_TEST_VICTIM"

func victim() {
	fail := func(err error) {
		fmt.Println("error", err)
		os.Exit(1)
	}
	r, err := assets.Fetch(context.Background(), assets.Options{IgnoreSystemQEMU: true, Offline: true})
	if err != nil {
		fail(err)
	}
	c, _, err := guestConfig(context.Background(), r, os.Getenv(envVictim), nil)
	if err != nil {
		fail(err)
	}
	m, err := Start(context.Background(), c)
	if err != nil {
		fail(err)
	}
	fmt.Println("pid", m.PID())
	select {}
}

// Invariant: qemu: Cancel, Close, or the death of the parent end QEMU.
func TestKilledParentLeavesNoQEMU(t *testing.T) {
	fetched(t)
	path := testkit.Must(program())(t)
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), envVictim+"="+path)
	out, err := cmd.StdoutPipe()
	testkit.OK(t, err)
	testkit.OK(t, cmd.Start())
	var pid int
	if _, err := fmt.Fscanf(out, "pid %d\n", &pid); err != nil {
		t.Fatalf("the helper has told of no QEMU: %v", err)
	}
	fd, err := unix.PidfdOpen(pid, 0)
	testkit.OK(t, err)
	defer unix.Close(fd)
	testkit.OK(t, cmd.Process.Kill())
	_ = cmd.Wait()
	ended := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(ended, 30_000)
		if err == unix.EINTR {
			continue
		}
		if n != 1 || err != nil {
			t.Fatalf("QEMU %d lives on after its parent was killed: %v", pid, err)
		}
		return
	}
}
