// Package access decides who may use a socket of `vnic serve`: vnic's user and root, and with [ForGroup]
// members of the group that owns the socket's file.
//
// The kernel checks the file's mode and group when a process connects (unix(7)). With ForGroup the package does not
// check a peer's groups again (SO_PEERGROUPS), only that the file still has its group and a mode that gives other
// users no right.
package access

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/scm"
)

// GroupMode is the mode of a socket that a group shares.
const GroupMode = 0o660

// Rule decides who may use a socket. The zero Rule admits only this process's effective user and root.
type Rule struct {
	file  *os.File // the socket's file; nil: no group is admitted
	group uint32
}

// ForGroup returns a Rule that also admits the members of a group. The socket's file at path must belong to the group,
// and have no permission bits besides GroupMode, else the error says why. The caller closes the Rule.
func ForGroup(path string, group int) (Rule, error) {
	f, err := os.OpenFile(path, unix.O_PATH|unix.O_NOFOLLOW, 0)
	if err != nil {
		return Rule{}, err
	}
	r := Rule{file: f, group: uint32(group)}
	if why := r.changed(); why != "" {
		_ = f.Close()
		return Rule{}, fmt.Errorf("socket %s: %s", path, why)
	}
	return r, nil
}

// Close closes the Rule's descriptor of the socket's file, if it has one.
func (r Rule) Close() error {
	if r.file == nil {
		return nil
	}
	return r.file.Close()
}

// Check returns conn's peer, empty if the kernel does not report it, and why the peer may not use the socket; why is ""
// if it may.
func (r Rule) Check(conn *net.UnixConn) (peer *unix.Ucred, why string) {
	peer, err := scm.Peer(conn)
	if err != nil {
		return &unix.Ucred{}, err.Error()
	}
	ours := uint32(os.Geteuid())
	switch {
	case mayConnect(peer.Uid, ours):
		return peer, ""
	case r.file == nil:
		return peer, fmt.Sprintf("the socket is for user %d alone; --socket-group NAME shares it with a group", ours)
	}
	return peer, r.changed()
}

const retry = time.Second

// Accept accepts connections to l until ctx ends or l is closed, and calls serve for one after another. serve owns its
// connection. Accept does not close l.
func Accept(ctx context.Context, l *net.UnixListener, serve func(*net.UnixConn)) {
	defer context.AfterFunc(ctx, func() { _ = l.SetDeadline(time.Unix(1, 0)) })()
	for {
		conn, err := l.AcceptUnix()
		switch {
		case err == nil && ctx.Err() == nil:
			serve(conn)
		case err == nil:
			_ = conn.Close()
			return
		case ctx.Err() != nil || errors.Is(err, net.ErrClosed):
			return
		default:
			select {
			case <-ctx.Done():
			case <-time.After(retry):
			}
		}
	}
}

// changed returns why the file does not admit the group: the file is no socket, has another group or permission bits
// besides GroupMode, or cannot be examined. "": none of these.
func (r Rule) changed() string {
	st, err := r.file.Stat()
	if err != nil {
		return err.Error()
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	switch mode := st.Mode(); {
	case !ok || mode.Type() != fs.ModeSocket:
		return "its file is no socket"
	case sys.Gid != r.group:
		return fmt.Sprintf("the socket was group %d's, and has become group %d's", r.group, sys.Gid)
	case mode.Perm()&^GroupMode != 0:
		return fmt.Sprintf("the socket's mode was %#o, and has become %#o", GroupMode, mode.Perm())
	}
	return ""
}

func mayConnect(uid, ours uint32) bool { return uid == ours || uid == 0 }

const maxTold = 16

// Told remembers which users, or processes, were logged, by their ids. It is for one goroutine at a time.
type Told struct{ users map[uint32]bool }

// First reports whether to log a user (or a process): it is true at the first call with each of the first maxTold ids.
func (t *Told) First(uid uint32) bool {
	if t.users[uid] || len(t.users) == maxTold {
		return false
	}
	if t.users == nil {
		t.users = map[uint32]bool{}
	}
	t.users[uid] = true
	return true
}
