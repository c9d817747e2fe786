package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/machine/assets"
	"vnic.dev/vnic/internal/testkit"
)

// Invariant: vnic qemu: The cache's QEMU runs with its own libraries and firmware, and has its own exit status.
func TestQEMUOfTheCacheRuns(t *testing.T) {
	cache := cacheWithQEMU(t)
	qemu := func(args ...string) *exec.Cmd {
		c := exec.Command("vnic", append([]string{"qemu", "--offline", "--cache", cache, "--"}, args...)...)
		c.Env = append(os.Environ(), assets.EnvQEMU+"=/no/such/qemu") // this program must not be used
		return c
	}
	for _, tt := range []struct {
		args, says string
		status     int
	}{
		{"--version", "QEMU emulator version ", 0},
		{"-device help", "name \"vfio-user-pci\", bus PCI", 0},
		{"-device nonsense", "qemu-system-x86_64: -device nonsense: 'nonsense' is not a valid device model name\n", 1},
		{"-no-such-flag", "qemu-system-x86_64: -no-such-flag: invalid option\n", 1},
	} {
		c := qemu(strings.Fields(tt.args)...)
		out, err := c.CombinedOutput()
		status, err := exitOf(c, err)
		testkit.OK(t, err)
		if status != tt.status || !strings.Contains(string(out), tt.says) {
			t.Errorf("%s: status %d, %s", tt.args, status, out)
		}
	}
}

// The tree in the cache is locked while QEMU runs.
func TestQEMUTakesTheProcesssPlace(t *testing.T) {
	cache := cacheWithQEMU(t)
	c := exec.Command("vnic", "qemu", "--offline", "--cache", cache, "--", "-M", "q35", "-display", "none", "-S", "-qmp",
		"stdio", "-device", "virtio-net-pci") // needs a BIOS and a boot ROM
	in := testkit.Must(c.StdinPipe())(t)
	out := bufio.NewScanner(testkit.Must(c.StdoutPipe())(t))
	testkit.OK(t, c.Start())
	t.Cleanup(func() { _ = c.Process.Kill() })
	says := func(want string) {
		t.Helper()
		for out.Scan() {
			if strings.Contains(out.Text(), want) {
				return
			}
		}
		t.Fatalf("no %q", want)
	}
	says(`{"QMP": `)
	testkit.Must(fmt.Fprintln(in, `{"execute": "qmp_capabilities"}`))(t)
	says(`{"return": {}}`)
	exe := testkit.Must(os.Readlink(fmt.Sprintf("/proc/%d/exe", c.Process.Pid)))(t)
	tree, _, found := strings.Cut(exe, "/usr/lib/")
	if !found || filepath.Base(filepath.Dir(tree)) != "qemu" {
		t.Fatalf("it runs %s", exe)
	}
	dir := testkit.Must(os.Open(tree))(t)
	defer dir.Close()
	lock := func() error { return unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB) }
	testkit.ErrorIs(t, lock(), unix.EWOULDBLOCK)
	testkit.OK(t, c.Process.Signal(unix.SIGTERM))
	says(`"event": "SHUTDOWN"`)
	testkit.OK(t, c.Wait())
	if err := lock(); err != nil && !errors.Is(err, unix.EWOULDBLOCK) { // another test may hold the lock
		t.Error(err)
	}
}
