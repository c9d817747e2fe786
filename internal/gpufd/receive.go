package gpufd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/user"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/agent"
	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/scm"
)

// Suffix ends the name of a GPU's socket; before it is the name of the port's socket.
const Suffix = ".gpu"

var (
	// patience, times limits.Slow, is how long Receive waits for the server. Tests change it.
	patience = limits.LocalServer

	errDescriptors = errors.New("descriptors")
)

// MaxPath is the length of the longest name of a socket, in bytes (sockaddr_un).
const MaxPath = 107

// Receive receives a descriptor of a GPU's memory, with close-on-exec, from the socket at path. The caller closes it.
func Receive(ctx context.Context, path string) (fd int, err error) {
	fd, err = receive(ctx, path)
	if err != nil {
		return -1, fmt.Errorf("%s: %w", path, err)
	}
	return fd, nil
}

func receive(ctx context.Context, path string) (int, error) {
	if len(path) > MaxPath {
		return -1, fmt.Errorf("%d bytes, a socket's name has %d at most", len(path), MaxPath)
	}
	if _, err := os.Stat(path + Suffix); err == nil {
		return -1, fmt.Errorf("that is the socket of a port: its GPU's is %s", path+Suffix)
	}
	limit, cancel := context.WithTimeout(ctx, patience.Here())
	defer cancel()
	conn, err := dial(limit, path)
	if err != nil {
		return -1, advise(path, err)
	}
	defer conn.Close()
	defer context.AfterFunc(limit, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) })()
	b, socket := make([]byte, maxText), scm.Socket{UnixConn: conn, MaxFDs: scm.MaxFDs, Bad: errDescriptors}
	var fds scm.FDs
	defer fds.Close()
	n, err := socket.ReadFDs(b, &fds)
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() == nil:
		return -1, fmt.Errorf("no answer: that is no socket of a GPU's memory: 'vnic serve --socket-group' has one beside "+
			"each port's, with %s at its end", Suffix)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return -1, context.Cause(ctx)
	case errors.Is(err, io.EOF), errors.Is(err, unix.ECONNRESET):
		return -1, errors.New("hung up without an answer: vnic serve has ended, or this is no socket of a GPU's memory")
	case err != nil && !errors.Is(err, errDescriptors):
		return -1, err
	case fds.Len() == 0 && err != nil:
		return -1, errors.New("no descriptor is left for it in this process: raise the limit (ulimit -n)")
	case fds.Len() == 0 && n > 1:
		return -1, fmt.Errorf("vnic serve gives no memory: %s", agent.Plain(string(b[:n])))
	case fds.Len() != 1 || n != 1 || b[0] != 0:
		return -1, fmt.Errorf("an answer of %d bytes with %d descriptors: that is no socket of a GPU's memory", n, fds.Len())
	}
	if !sealed(fds.At(0)) {
		return -1, errors.New("what came is no GPU's memory of vnic's")
	}
	return fds.Take(0), nil
}

func dial(ctx context.Context, path string) (*net.UnixConn, error) {
	retry := time.NewTicker(10 * time.Millisecond)
	defer retry.Stop()
	for {
		var d net.Dialer
		c, err := d.DialContext(ctx, "unix", path)
		if err == nil {
			return c.(*net.UnixConn), nil
		}
		if !errors.Is(err, unix.EAGAIN) {
			return nil, err
		}
		select {
		case <-retry.C:
		case <-ctx.Done():
			return nil, err
		}
	}
}

func sealed(fd int) bool {
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	return err == nil && seals&unix.F_SEAL_SHRINK != 0
}

func advise(path string, err error) error {
	st, e := os.Stat(path)
	var s *os.SyscallError
	if errors.As(err, &s) {
		err = s.Err
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if port, ok := strings.CutSuffix(path, Suffix); ok {
			if _, e := os.Stat(port); e == nil {
				return fmt.Errorf("%w: the vnic serve of %s was started without --socket-group, or with --gpu-memory 0", err, port)
			}
		}
		return fmt.Errorf("%w: 'vnic serve --socket-group NAME --socket-path PATH' makes it, as PATH%s", err, Suffix)
	case e == nil && st.Mode().Type() != fs.ModeSocket:
		return errors.New("it is no socket: 'vnic serve --socket-group' prints the names of its own")
	case errors.Is(err, unix.ECONNREFUSED):
		return fmt.Errorf("%w: nobody listens there any more: start vnic serve anew", err)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w: %s", err, whose(st, e))
	case errors.Is(err, unix.EPROTOTYPE):
		return errors.New("it is a socket of another type: 'vnic serve --socket-group' prints the names of its own")
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, unix.EAGAIN):
		return errors.New("nobody takes connections there: vnic serve hangs, or is stopped")
	}
	return err
}

func whose(st fs.FileInfo, err error) string {
	if err != nil {
		return "this user may not search its directory"
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	if !ok {
		return "this user may not write it"
	}
	id := strconv.Itoa(int(sys.Gid))
	group := "group " + id
	if g, err := user.LookupGroupId(id); err == nil {
		group += " (" + g.Name + ")"
	}
	return fmt.Sprintf("it is for user %d and members of %s, and this is neither: 'id' says which groups a login has",
		sys.Uid, group)
}
