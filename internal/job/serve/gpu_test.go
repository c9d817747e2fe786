package serve

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/broker"
	"vnic.dev/vnic/internal/gpufd"
	"vnic.dev/vnic/internal/testkit"
)

// member is an environment variable with a path: this program, as another user, then uses a GPU's memory.
const member = "VNIC_TEST_MEMBER"

// useGPU maps a GPU's memory as QEMU does, by its path or from its GPU socket, tries to truncate it and to change its
// mode, and writes to it. It prints the text that it found there, and whether the tries succeeded.
func useGPU(path string) int {
	if strings.HasSuffix(path, gpufd.Suffix) {
		fd, err := gpufd.Receive(context.Background(), path)
		if err != nil {
			fmt.Println(err)
			return 1
		}
		path = fmt.Sprintf("/proc/self/fd/%d", fd)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	m, err := unix.Mmap(int(f.Fd()), 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Printf("%s; cut: %t; ", strings.TrimRight(string(m[:100]), "\x00"), f.Truncate(0) == nil)
	copy(m, "from the member")
	fmt.Printf("chmod: %t", f.Chmod(0o777) == nil)
	return 0
}

func uses(t *testing.T, dir, path string, uid uint32, groups ...uint32) string {
	t.Helper()
	c := command(t, dir)
	c.Env = append(os.Environ(), member+"="+path)
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid, Groups: groups}}
	out, err := c.Output()
	if e := new(exec.ExitError); err != nil && !errors.As(err, &e) {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

// A member of the group gets the memory of each port's own GPU from the GPU's socket; other users do not.
//
// Invariant: vnic serve: The memory of a GPU is given only to vnic's own user, root and the members
// of --socket-group.
func TestGroupGetsTheGPU(t *testing.T) {
	testkit.Slow(t)
	testkit.LeavesNothing(t)
	dir := publicDir(t)
	for _, mode := range []string{broker.Off, broker.Log, broker.On} {
		group := os.Getegid()
		if os.Geteuid() == 0 {
			group = 54321
		}
		paths := []string{filepath.Join(dir, "0"), filepath.Join(dir, "1")}
		p := startApart(t, apartOptions{Mode: mode, Paths: paths, GPUMemory: 4096, Group: strconv.Itoa(group)})
		for i, path := range paths {
			gpu := p.rep.Ports[i].GPUSocket
			testkit.Equal(t, "name", gpu, path+".gpu")
			st := testkit.Must(os.Lstat(gpu))(t)
			testkit.Equal(t, "mode", st.Mode(), fs.ModeSocket|0o660)
			testkit.Equal(t, "group", int(st.Sys().(*syscall.Stat_t).Gid), group)
			memory := testkit.Must(os.OpenFile(p.rep.Ports[i].GPUPath, os.O_RDWR, 0))(t)
			text := fmt.Sprint("of GPU ", i)
			testkit.Must(memory.WriteAt([]byte(text), 0))(t)
			fd := testkit.Must(gpufd.Receive(t.Context(), gpu))(t)
			got := make([]byte, len(text))
			testkit.Must(unix.Pread(fd, got, 0))(t)
			testkit.OK(t, unix.Close(fd))
			testkit.Equal(t, "our user's", string(got), text)
			if os.Geteuid() == 0 {
				testkit.Equal(t, "a member's", uses(t, dir, gpu, 65534, 54321), text+"; cut: false; chmod: false")
				testkit.Must(memory.ReadAt(got[:6], 0))(t)
				testkit.Equal(t, "a member wrote", string(got[:6]), "from t")
				if s := uses(t, dir, gpu, 65534); !strings.Contains(s,
					"permission denied: it is for user 0 and members of group 54321") {
					t.Errorf("of no group: %s", s)
				}
				if s := uses(t, dir, p.rep.Ports[i].GPUPath, 65534, 54321); !strings.Contains(s, "permission denied") {
					t.Errorf("by %s: %s", p.rep.Ports[i].GPUPath, s)
				}
				testkit.OK(t, os.Chmod(gpu, 0o666)) // a careless user may do that
				for range 3 {
					s := uses(t, dir, gpu, 65534)
					if !strings.Contains(s, "gives no memory: the socket's mode was 0660, and has become 0666") {
						t.Errorf("of no group, when all may connect: %s", s)
					}
				}
			}
			testkit.OK(t, memory.Close())
		}
		a, b := p.guest(0), p.guest(1)
		testkit.OK(t, errors.Join(a.Exchange(t.Context(), b, 200_000), a.Close(), b.Close()))
		if n := p.end(); n != 0 {
			t.Errorf("%s: %d calls refused: %s", mode, n, p.output)
		}
		if os.Geteuid() == 0 {
			testkit.Equal(t, mode+": refusals that were told", strings.Count(p.output.String(), "is refused the GPU's memory"),
				1)
		}
		for _, path := range paths {
			for _, path := range []string{path, path + ".gpu"} {
				_, err := os.Lstat(path)
				testkit.ErrorIs(t, err, fs.ErrNotExist)
			}
		}
	}
	if os.Geteuid() != 0 {
		t.Skip("only root can be another user: the rest was not tried")
	}
}

func TestNoGPUSockets(t *testing.T) {
	testkit.LeavesNothing(t)
	for _, o := range []Options{{GPUMemory: 4096}, {Group: strconv.Itoa(os.Getegid())}} {
		dir := t.TempDir()
		o.Paths = []string{filepath.Join(dir, "s")}
		s := serve(t, o)
		testkit.Equal(t, "name", s.rep.Ports[0].GPUSocket, "")
		if list, err := os.ReadDir(dir); err != nil || len(list) != 1 {
			t.Errorf("%v, %v", list, err)
		}
		s.end()
	}
}

// If the GPU socket's path is in use vnic serve does not start, and leaves no file.
func TestGPUSocketInUse(t *testing.T) {
	testkit.LeavesNothing(t)
	dir := t.TempDir()
	path := filepath.Join(dir, "s")
	l := testkit.Must(listen(t.Context(), path+".gpu"))(t)
	o := Options{Paths: []string{path}, GPUMemory: 4096, Group: strconv.Itoa(os.Getegid())}
	o.NIC.Model = "virtio"
	testkit.ErrorSays(t, Do(t.Context(), o), path+".gpu: in use: process ")
	testkit.OK(t, l.Close())
	if list, err := os.ReadDir(dir); err != nil || len(list) != 0 {
		t.Errorf("left: %v, %v", list, err)
	}
}
