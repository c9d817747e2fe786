package main

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	guestimages "vnic.dev/vnic/guest-images"
	"vnic.dev/vnic/internal/agent"
	"vnic.dev/vnic/internal/machine/assets"
	"vnic.dev/vnic/internal/machine/qemu"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/vhostuser"
	"vnic.dev/vnic/virtq"
)

// envMain is the environment variable that makes the test's binary run main, so that tests can give it flags
// and signals.
const envMain = "VHOST_USER_RNG_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(envMain) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// startDevice starts the program with args, and returns the path of its socket. At the test's end SIGTERM must end the
// program with status 0.
func startDevice(t *testing.T, args ...string) (path string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "rng-") // short: a socket's path has 107 bytes at most
	testkit.OK(t, err)
	path = filepath.Join(dir, "s")
	cmd := exec.Command(os.Args[0], append([]string{"-socket-path", path}, args...)...)
	cmd.Env = append(os.Environ(), envMain+"=1")
	out := testkit.Must(cmd.StderrPipe())(t)
	testkit.OK(t, cmd.Start())
	lines := bufio.NewReader(out)
	first, err := lines.ReadString('\n')
	t.Cleanup(func() {
		_ = cmd.Process.Signal(unix.SIGTERM)
		rest, _ := io.ReadAll(lines)
		if err := cmd.Wait(); err != nil {
			t.Errorf("device: %v\n%s", err, rest)
		}
		if t.Failed() {
			t.Logf("device: %s", rest)
		}
		if err := os.Remove(dir); err != nil { // fails if the socket is still there
			t.Error(err)
		}
	})
	if err != nil || !strings.Contains(first, "listening socket="+path) {
		t.Fatalf("device says %q, %v", first, err)
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm()&0o077 != 0 {
		t.Fatalf("socket: %v, %v", st.Mode(), err)
	}
	return path
}

// breaks counts the bytes that are not the preceding byte plus 1, modulo 256; the first byte does not count.
func breaks(b []byte) (n int) {
	for i := 1; i < len(b); i++ {
		if b[i] != b[i-1]+1 {
			n++
		}
	}
	return n
}

// A guest under QEMU uses the program as its random number generator.
//
// Invariant: examples: A device of the tutorial is a guest's random number generator, and the guest
// reads the device's bytes.
func TestGuestReadsTheDevicesBytes(t *testing.T) {
	testkit.Boots(t)
	r := testkit.Must(assets.Fetch(t.Context(), assets.Options{IgnoreSystemQEMU: true}))(t)
	defer r.Close()
	const guest = "vnic.dev/vnic/docs/examples/vhost-user-rng/testdata/guest"
	program := testkit.Must(guestimages.BuildProgram(t.Context(), guest, t.TempDir()))(t)
	modules := []string{"virtio-rng"}
	img, err := guestimages.Build(t.Context(), guestimages.Options{
		CacheDir: r.Cache, ModulesDir: r.Kernel.Modules, Modules: modules, Program: program,
	})
	testkit.OK(t, err)
	initrd := testkit.Must(img.Initrd(agent.Config{Modules: modules, Hostname: "a"}))(t)
	defer initrd.Close()
	path := startDevice(t, "-counter")
	m, err := qemu.Start(t.Context(), qemu.Config{
		Name: t.Name(), QEMU: r.QEMU, Kernel: r.Kernel, Initrd: []io.Reader{initrd}, RAMSize: 256 << 20, Accel: qemu.AccelTCG,
		TimeLimit: 3 * time.Minute, Console: t.Output(), Args: []string{
			"-chardev", "socket,id=rng,path=" + path, "-device", "vhost-user-rng-pci,chardev=rng",
		},
	})
	testkit.OK(t, err)
	defer m.Close()
	// Linux fetches blocks of 32 bytes or more, and uses some itself. A read returns bytes from a block's end, so 16
	// bytes are successive numbers, or successive numbers from each of two blocks.
	sizes := append([]int{1, 2}, slices.Repeat([]int{16}, 18)...)
	var got struct {
		Current string
		Reads   [][]byte
	}
	testkit.OK(t, m.Agent().Call(t.Context(), "entropy", sizes, &got))
	if got.Current != "virtio_rng.0" {
		t.Errorf("the guest's generator is %q", got.Current)
	}
	long := 0
	for i, b := range got.Reads {
		if breaks(b) > 1 {
			t.Errorf("read %d: %x", i, b)
		}
		if len(b) == 16 {
			long++
		}
	}
	t.Logf("%s: %x", got.Current, got.Reads)
	if long < 10 {
		t.Errorf("%d reads of 16 bytes", long)
	}
	testkit.OK(t, m.PowerOff(t.Context()))
}

// Without QEMU: a driver in this process requests bytes, over one connection after the other.
//
// Invariant: examples: A device of the tutorial is a guest's random number generator, and the guest
// reads the device's bytes.
func TestDriverReadsTheDevicesBytes(t *testing.T) {
	path := startDevice(t, "-counter")
	next := byte(0)
	for range 2 {
		b := ask(t, path, 100)
		if len(b) != 100 || b[0] != next || breaks(b) != 0 {
			t.Errorf("%x, after %d", b, next)
		}
		next += 100
	}
	if b := ask(t, startDevice(t), 100); len(b) != 100 || breaks(b) < 50 {
		t.Errorf("random bytes: %x", b)
	}
	if b := ask(t, path, 10000); len(b) != 4096 || breaks(b) != 0 {
		t.Errorf("%d bytes of a large buffer", len(b))
	}
}

// ask connects, offers one buffer of n bytes, and returns the bytes that the device wrote to it.
func ask(t *testing.T, path string, n int) []byte {
	t.Helper()
	const size, memLen, user, bufAt = 4, 1 << 20, 0x7f00_0000_0000, 0x80000
	mem := testkit.Memfd(t, memLen)
	m := testkit.Must(unix.Mmap(int(mem.Fd()), 0, memLen, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED))(t)
	defer func() { _ = unix.Munmap(m) }()
	driver := testkit.Must(virtq.NewDriver(virtq.DriverConfig{Size: size, Mem: m}))(t)
	conn, err := net.Dial("unix", path)
	testkit.OK(t, err)
	f := vhostuser.NewFrontend(conn.(*net.UnixConn))
	defer f.Close()
	_, _, err = f.Negotiate(vhostuser.FeatureVersion1, uint64(vhostuser.SupportedProtocol))
	testkit.OK(t, err)
	testkit.OK(t, f.AddMemory(int(mem.Fd()), 0, user, memLen, 0))
	kick, call := eventfd(t), eventfd(t)
	desc, avail, used := driver.Addrs()
	testkit.OK(t, f.SetupVring(vhostuser.VringSetup{
		Size: size, Desc: user + desc, Avail: user + avail, Used: user + used, Kick: kick, Call: call,
	}))
	testkit.OK(t, f.SetEnable(0, true))
	testkit.OK(t, driver.Add(nil, []virtq.Buf{{Addr: bufAt, Len: uint32(n)}}, 1))
	driver.Publish()
	_, err = unix.Write(kick, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	testkit.OK(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var u [1]virtq.Used
	for {
		k, err := driver.Poll(u[:])
		testkit.OK(t, err)
		if k == 1 {
			break
		}
		fds := []unix.PollFd{{Fd: int32(call), Events: unix.POLLIN}}
		if _, err := unix.Poll(fds, 60000); err != nil && err != unix.EINTR || ctx.Err() != nil {
			t.Fatalf("no call: %v, %v", err, ctx.Err())
		}
		_, _ = unix.Read(call, make([]byte, 8))
	}
	if base, err := f.GetVringBase(0); err != nil || base != 1 {
		t.Errorf("base %d, %v", base, err)
	}
	return bytes.Clone(m[bufAt:][:u[0].Len])
}

func eventfd(t *testing.T) int {
	t.Helper()
	fd := testkit.Must(unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK))(t)
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}
