package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/acceptance/internal/gvelab"
)

// serve is the server's process: NICs whose connections come over descriptor 3, until SIGTERM.
func serve() {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	fail := func(err error) {
		fmt.Fprintln(os.Stderr, "gvelost: server:", err)
		os.Exit(1)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	w, err := gvelab.NewWires(log)
	if err != nil {
		fail(err)
	}
	in, err := fileConn(os.NewFile(3, "connections"))
	if err != nil {
		fail(err)
	}
	for i := range gvelab.Ports {
		b, oob := make([]byte, 1), make([]byte, unix.CmsgSpace(4))
		_, n, _, _, err := in.ReadMsgUnix(b, oob)
		if err != nil {
			fail(err)
		}
		fds, err := descriptors(oob[:n])
		if err != nil || len(fds) != 1 {
			fail(fmt.Errorf("%d descriptors: %w", len(fds), err))
		}
		conn, err := fileConn(os.NewFile(uintptr(fds[0]), "vfio-user"))
		if err != nil {
			fail(err)
		}
		w.Serve(i, conn)
	}
	<-ctx.Done()
	for _, err := range w.Stop(errors.New("the server is told to end")) {
		log.Info("a connection has ended", "cause", err)
	}
}

func descriptors(oob []byte) ([]int, error) {
	ms, err := unix.ParseSocketControlMessage(oob)
	if err != nil || len(ms) != 1 {
		return nil, errors.Join(err, io.ErrUnexpectedEOF)
	}
	return unix.ParseUnixRights(&ms[0])
}

// fileConn takes over f.
func fileConn(f *os.File) (*net.UnixConn, error) {
	c, err := net.FileConn(f)
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	return c.(*net.UnixConn), nil
}

// remote is a server in a process of its own.
type remote struct {
	cmd    *exec.Cmd
	conns  *net.UnixConn // how it gets its connections
	nic0   *os.File      // one of them, until it is known to have something unread; nil after
	failed error         // of connect
	waited bool
}

func startServer(log io.Writer) (*remote, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	theirs := os.NewFile(uintptr(fds[1]), "connections")
	defer theirs.Close()
	r := &remote{cmd: exec.Command("/proc/self/exe", "-server")}
	if r.conns, err = fileConn(os.NewFile(uintptr(fds[0]), "connections")); err != nil {
		return nil, err
	}
	r.cmd.Stderr, r.cmd.ExtraFiles = log, []*os.File{theirs}
	// Signals of a terminal are for us; what becomes of us, it goes with us.
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := r.cmd.Start(); err != nil {
		return nil, errors.Join(err, r.conns.Close())
	}
	return r, nil
}

// connect hands the connection of a NIC over. QEMU makes them one after the other, in their order.
func (r *remote) connect(i int, conn *net.UnixConn) {
	f, err := conn.File()
	if err = errors.Join(err, conn.Close()); err == nil {
		_, _, err = r.conns.WriteMsgUnix([]byte{byte(i)}, unix.UnixRights(int(f.Fd())), nil)
		if i == 0 {
			r.nic0 = f
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
		unread, err = unix.IoctlGetInt(int(r.nic0.Fd()), unix.SIOCINQ)
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
func (r *remote) end(sig syscall.Signal) error {
	err := errors.Join(r.failed, r.release(), r.cmd.Process.Signal(sig))
	if err != nil {
		return err
	}
	t := time.AfterFunc(quitLimit, func() { _ = r.cmd.Process.Kill() })
	defer t.Stop()
	r.waited = true
	err = r.cmd.Wait()
	var exit *exec.ExitError
	if ws, ok := r.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && sig == syscall.SIGKILL && errors.As(err, &exit) && ws.Signal() == sig {
		return nil
	}
	if err != nil {
		return fmt.Errorf("the server's process: %w", err)
	}
	return nil
}

func (r *remote) release() error {
	if r.nic0 == nil {
		return nil
	}
	err := r.nic0.Close()
	r.nic0 = nil
	return err
}

// close leaves nothing of it.
func (r *remote) close() error {
	err := errors.Join(r.release(), r.conns.Close())
	if !r.waited {
		r.waited = true
		_ = r.cmd.Process.Kill()
		_ = r.cmd.Wait()
	}
	return err
}
