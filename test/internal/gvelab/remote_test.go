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

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/proc"
	"vnic.dev/vnic/internal/testkit"
)

// remote is a server in a process of its own.
type remote struct {
	*proc.Child
	conns  *net.UnixConn // by which the server gets its connections
	first  *os.File      // copy of the first NIC's connection, for hang; nil before connect, after release
	failed error         // errors of connect, joined
}

func startServer(t *testing.T, log io.Writer) *remote {
	t.Helper()
	ours, theirs := testkit.SocketPair(t)
	defer theirs.Close()
	f := testkit.Must(theirs.File())(t)
	defer f.Close()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), envServer+"=1")
	cmd.Stderr, cmd.ExtraFiles = log, []*os.File{f}
	child := testkit.Must(proc.StartChild(cmd))(t)
	r := &remote{Child: child, conns: ours}
	t.Cleanup(func() {
		testkit.NoError(t, errors.Join(r.release(), r.conns.Close()))
		r.End(0)
	})
	return r
}

// connect sends the connection of a NIC to the server.
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

// hang stops the server, and waits until requests of the guest are unread.
func (r *remote) hang(ctx context.Context) (unread int, err error) {
	if err := syscall.Kill(r.PID(), syscall.SIGSTOP); err != nil {
		return 0, err
	}
	err = poll(ctx, func() (bool, error) {
		unread, err = unix.IoctlGetInt(int(r.first.Fd()), unix.SIOCINQ)
		return unread > 0, os.NewSyscallError("SIOCINQ", err)
	})
	return unread, err
}

// end ends the server by a signal.
func (r *remote) end(t *testing.T, sig syscall.Signal) {
	t.Helper()
	testkit.OK(t, errors.Join(r.failed, r.release(), syscall.Kill(r.PID(), sig)))
	if !r.Ends(quitLimit) {
		t.Fatalf("the server's process has not ended %v after %v", quitLimit, sig)
	}
	if err := r.Err(); err != nil && (sig != syscall.SIGKILL || err.Error() != "signal: killed") {
		t.Fatalf("the server's process: %v", err)
	}
}

func (r *remote) release() error {
	f := r.first
	r.first = nil
	if f == nil {
		return nil
	}
	return f.Close()
}
