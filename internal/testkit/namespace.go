package testkit

import (
	"errors"
	"flag"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

const inNamespace = "VNIC_TEST_NAMESPACE"

// MayClone starts /bin/true with these flags for clone(2), waits until it ends, and returns an error if that fails.
// Call it before a start with UidMappings or GidMappings: if clone fails there, it leaves two descriptors of a pipe
// open (Go's syscall, forkAndExecInChild).
func MayClone(flags uintptr) error {
	cmd := exec.Command("/bin/true")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags, Pdeathsig: syscall.SIGKILL}
	return cmd.Run()
}

// InNamespace runs the calling test again in a new process, in a network namespace of its own and as root there, and
// returns false. In that process InNamespace returns true. It fails the test if the process cannot start or fails.
//
//	if !testkit.InNamespace(t) {
//		return
//	}
func InNamespace(t *testing.T) bool {
	t.Helper()
	if os.Getenv(inNamespace) != "" {
		return true
	}
	run := func(flags uintptr) ([]byte, error) {
		cmd := exec.Command("/proc/self/exe", "-test.run=^"+regexp.QuoteMeta(t.Name())+"$", "-test.v", "-test.count=1")
		if f := flag.Lookup("test.gocoverdir"); f != nil && f.Value.String() != "" {
			// The files of both processes make the profile.
			cmd.Args = append(cmd.Args, "-test.gocoverdir="+f.Value.String())
		}
		cmd.Env = append(os.Environ(), inNamespace+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags, Pdeathsig: syscall.SIGKILL}
		if flags&unix.CLONE_NEWUSER != 0 {
			cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
			cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
		}
		runtime.LockOSThread() // Pdeathsig kills the child when this thread ends
		defer runtime.UnlockOSThread()
		return cmd.CombinedOutput()
	}
	const flags = unix.CLONE_NEWUSER | unix.CLONE_NEWNET
	var out []byte
	err := MayClone(flags)
	if err == nil {
		out, err = run(flags)
	}
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) && os.Getuid() == 0 {
		out, err = run(unix.CLONE_NEWNET)
	}
	if err != nil {
		t.Fatalf("in a network namespace (user namespaces, or root, are needed): %v\n%s", err, out)
	}
	t.Logf("%s", out)
	return false
}

// Elsewhere starts a thread in a new network namespace, for which the process must be root; the thread ends with the
// test. do runs f on the thread, and waits until f returns. tid is the thread's id, as in /proc/TID/ns/net.
func Elsewhere(t *testing.T) (do func(f func()), tid int) {
	t.Helper()
	calls, ready, done := make(chan func()), make(chan error), make(chan struct{})
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine
		tid = unix.Gettid()
		err := os.NewSyscallError("unshare", unix.Unshare(unix.CLONE_NEWNET))
		ready <- err
		if err != nil {
			return
		}
		for f := range calls {
			f()
			done <- struct{}{}
		}
		close(done)
	}()
	OK(t, <-ready)
	t.Cleanup(func() {
		close(calls)
		<-done
	})
	return func(f func()) {
		calls <- f
		<-done
	}, tid
}

// Tap makes a persistent tap device in this thread's network namespace, as 'ip tuntap add NAME mode tap vnet_hdr'
// does.
func Tap(name string) error {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("open /dev/net/tun", err)
	}
	defer unix.Close(fd)
	ifr, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	ifr.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr); err != nil {
		return os.NewSyscallError("TUNSETIFF", err)
	}
	return os.NewSyscallError("TUNSETPERSIST", unix.IoctlSetInt(fd, unix.TUNSETPERSIST, 1))
}

// Loopback returns two addresses of 127.0.0.0/8 that contain the process id: other processes of the same PID
// namespace get other addresses from Loopback.
func Loopback() (a, b netip.Addr) {
	pid := os.Getpid() // at most 22 bits (PID_MAX_LIMIT)
	addr := func(last int) netip.Addr {
		n := pid<<2 | last
		return netip.AddrFrom4([4]byte{127, byte(n >> 16), byte(n >> 8), byte(n)})
	}
	return addr(1), addr(2)
}
