package serve

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/testkit"
)

// survivor is an environment variable with a socket's path. If it is set, the test program only maps descriptor 3,
// and for each byte of standard input connects to the path, sends rubbish and waits until the connection ends.
const survivor = "VNIC_TEST_SURVIVOR"

func survive(path string) error {
	if _, err := unix.Mmap(3, 0, 4096, unix.PROT_READ, unix.MAP_SHARED); err != nil {
		return err
	}
	for {
		if _, err := os.Stdin.Read(make([]byte, 1)); err != nil {
			return nil
		}
		c, err := net.Dial("unix", path)
		if err == nil {
			_, err = c.Write([]byte(strings.Repeat("rubbish", 10)))
		}
		if err != nil {
			return err
		}
		_, _ = c.Read(make([]byte, 1))
		_ = c.Close()
	}
}

// A vnic with a GPU warns of a process that maps only an earlier vnic's GPU memory. A vnic without a GPU does not warn.
//
// Invariant: vnic serve: A vnic with a GPU warns of a QEMU that maps only an earlier vnic's GPU
// memory.
func TestWhoHasAnEarlierGPUIsWarned(t *testing.T) {
	testkit.LeavesNothing(t)
	path := t.TempDir() + "/s"
	o := Options{Paths: []string{path}, GPUMemory: 2 << 20}
	// connects starts a process that maps the GPU memory in r; each call of once makes the process connect once.
	connects := func(r *Report) (once func()) {
		gpu := testkit.Must(os.OpenFile(r.Ports[0].GPUPath, os.O_RDWR, 0))(t)
		defer gpu.Close()
		c := exec.Command("/proc/self/exe")
		c.Env, c.ExtraFiles, c.Stderr = append(os.Environ(), survivor+"="+path), []*os.File{gpu}, os.Stderr
		in, err := c.StdinPipe()
		testkit.OK(t, errors.Join(err, c.Start()))
		t.Cleanup(func() {
			testkit.OK(t, errors.Join(in.Close(), c.Wait()))
		})
		return func() {
			testkit.Must(io.WriteString(in, "x"))(t)
		}
	}
	notes := func(s *served) (list []string) {
		for n := range s.notes {
			if list = append(list, n); strings.Contains(n, "connection ended") {
				break
			}
		}
		return list
	}
	first := serve(t, o)
	old := connects(first.rep)
	old()
	if n := notes(first); len(n) != 2 || strings.Contains(n[0]+n[1], "warning") {
		t.Errorf("of its own GPU: %q", n)
	}
	first.end()
	second := serve(t, o)
	old()
	if n := notes(second); len(n) != 3 || !strings.Contains(n[1], "has the GPU memory of an earlier vnic") {
		t.Errorf("of an earlier one: %q", n)
	}
	connects(second.rep)()
	if n := notes(second); len(n) != 2 {
		t.Errorf("of a new QEMU: %q", n)
	}
	second.end()
	o.GPUMemory = 0
	third := serve(t, o)
	old()
	if n := notes(third); len(n) != 2 {
		t.Errorf("where there is no GPU: %q", n)
	}
}

// Invariant: vnic serve: With a gateway, the IPv6 address of a guest's first NIC is the one that
// its kernel derives, unless the lab file gives the NIC's IPv4 or IPv6 address.
func TestAddressIsWhatTheKernelMakesUp(t *testing.T) {
	testkit.LeavesNothing(t)
	for alone, want := range map[bool]string{false: "fd76:6e69::76:6eff:fe69:%d/64", true: "fd76:6e69::%d/64"} {
		s := serve(t, Options{Paths: []string{t.TempDir() + "/a", t.TempDir() + "/b"},
			GatewayFlags: lab.GatewayFlags{NoGateway: alone}})
		for i, p := range s.rep.Ports {
			if want := fmt.Sprintf(want, i+1); p.Addr6 != want {
				t.Errorf("--no-gateway=%t: port %d has %s, want %s", alone, i, p.Addr6, want)
			}
		}
		s.end()
	}
}
