package servelab

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/testkit"
)

// vnic serve reports at most 1 MiB of memory a port, of 64 ports, and takes at most one tick of CPU time in the seconds
// for which the test leaves it without QEMUs.
//
// Invariant: nic: An idle device wakes no thread.
func TestServe64Ports(t *testing.T) {
	if testing.Short() {
		t.Skip("waits while nothing happens")
	}
	idle := 3 * time.Second
	if testkit.Long() {
		idle = 10 * time.Second
	}
	vnic := program(t)
	for _, nic := range []string{lab.Virtio, lab.GVE} {
		t.Run(nic, func(t *testing.T) {
			dir := t.TempDir()
			sockets := func() int {
				list := testkit.Must(filepath.Glob(filepath.Join(dir, "s[0-9]*")))(t)
				return len(list)
			}
			b := &bench{T: t, vnic: vnic}
			serve := func() *server {
				s := b.serve(t.Context(), "--nic", nic, "--socket-path", dir+"/s%d", "--ports", "64", "--gpu-memory", "0")
				t.Cleanup(s.kill)
				return s
			}
			s := serve()
			rep := s.rep
			if rep.Schema != 1 || rep.Bytes > 1<<20 || len(rep.Ports) != 64 || rep.Ports[63].MAC != "02:76:6e:69:00:40" {
				t.Errorf("%+v", rep)
			}
			output, err := exec.Command(vnic, "serve", "--socket-path", dir+"/s7").CombinedOutput()
			want := fmt.Sprintf("vnic: socket %s/s7: in use: process %d listens there: end it, or give another name\n", dir,
				s.PID())
			if err == nil || string(output) != want {
				t.Errorf("a second start: %v: %q, want %q", err, output, want)
			}
			before := ticks(t, s.PID())
			time.Sleep(idle) // vnic has nothing to do meanwhile
			if n := ticks(t, s.PID()) - before; n > 1 {
				t.Errorf("%d ticks of CPU in %v, with no QEMU there", n, idle)
			}
			s.kill()
			if n := sockets(); n != 64 {
				t.Errorf("%d sockets were left by a vnic that was killed", n)
			}
			serve().term()
			if n := sockets(); n != 0 {
				t.Errorf("SIGTERM: %d sockets are left", n)
			}
		})
	}
}

func ticks(t *testing.T, pid int) (n int) {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	testkit.OK(t, err)
	text := string(b)
	f := strings.Fields(text[strings.LastIndex(text, ")")+1:])
	for _, field := range f[11:13] { // utime, stime
		v := testkit.Must(strconv.Atoi(field))(t)
		n += v
	}
	return n
}
