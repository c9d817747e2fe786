package gvelab

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/lab"
)

// remote is a server in a process of its own.
type remote struct {
	cmd    *exec.Cmd
	conns  *net.UnixConn // how it gets its connections
	first  *os.File      // of the first NIC, until it is known to have something unread; nil after
	failed error         // of connect
	waited bool
}

func startServer(t *testing.T, log io.Writer) *remote {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	testkit.OK(t, err)
	theirs := os.NewFile(uintptr(fds[1]), "connections")
	defer theirs.Close()
	r := &remote{cmd: exec.Command("/proc/self/exe")}
	if r.conns, err = fileConn(os.NewFile(uintptr(fds[0]), "connections")); err != nil {
		t.Fatal(err)
	}
	r.cmd.Env = append(os.Environ(), envServer+"=1")
	r.cmd.Stderr, r.cmd.ExtraFiles = log, []*os.File{theirs}
	// Signals of a terminal are for us; what becomes of us, it goes with us.
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := r.cmd.Start(); err != nil {
		t.Fatal(errors.Join(err, r.conns.Close()))
	}
	t.Cleanup(func() {
		if err := errors.Join(r.release(), r.conns.Close()); err != nil {
			t.Error(err)
		}
		if !r.waited {
			_ = r.cmd.Process.Kill()
			_ = r.cmd.Wait()
		}
	})
	return r
}

// connect hands the connection of a NIC over. QEMU makes them one after the other, in their order.
func (r *remote) connect(p *lab.Port, conn *net.UnixConn) {
	f, err := conn.File()
	if err = errors.Join(err, conn.Close()); err == nil {
		_, _, err = r.conns.WriteMsgUnix([]byte{byte(p.Index)}, unix.UnixRights(int(f.Fd())), nil)
		if p.Index == 0 {
			r.first = f
		} else {
			err = errors.Join(err, f.Close())
		}
	}
	r.failed = errors.Join(r.failed, err)
}

// hang stops the server until requests of the guest's wait for it.
func (r *remote) hang(ctx context.Context) (unread int, err error) {
	if err := r.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return 0, err
	}
	t := time.NewTicker(time.Millisecond)
	defer t.Stop()
	for {
		unread, err = unix.IoctlGetInt(int(r.first.Fd()), unix.SIOCINQ)
		if err != nil || unread > 0 {
			return unread, os.NewSyscallError("SIOCINQ", err)
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
}

// end has the server go by a signal, and waits for it: nobody else has its connections then.
func (r *remote) end(t *testing.T, sig syscall.Signal) {
	t.Helper()
	testkit.OK(t, errors.Join(r.failed, r.release(), r.cmd.Process.Signal(sig)))
	late := time.AfterFunc(quitLimit, func() { _ = r.cmd.Process.Kill() })
	defer late.Stop()
	r.waited = true
	err := r.cmd.Wait()
	var exit *exec.ExitError
	ws, ok := r.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if ok && sig == syscall.SIGKILL && errors.As(err, &exit) && ws.Signal() == sig {
		return
	}
	if err != nil {
		t.Fatalf("the server's process: %v", err)
	}
}

func (r *remote) release() error {
	if r.first == nil {
		return nil
	}
	err := r.first.Close()
	r.first = nil
	return err
}
