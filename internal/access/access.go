// Package access says who may use a socket of `vnic serve`.
//
// Our user and root may. So may members of a group that the socket's file is given to: the kernel asks that
// file's mode and group when a process connects (connect(2) wants the right to write; unix(7)), and knows all
// groups of the peer. The package does not ask again which groups these are (SO_PEERGROUPS): the answer would
// be the same. What it does look at, for each peer, is whether the file still has the group and a mode that
// lets nobody else in: what somebody has changed since, by chmod or chgrp, opens the socket to nobody. An
// access control list lets in whom it names: whoever writes one, for the file or as its directory's default,
// has said so.
//
// A connected socket that a member passes on, or the right to one by a program that it starts, is the member's
// to give.
//
// A check costs three system calls; who was refused is told once for each user, of at most 16 users a socket.
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

// Rule is who may use a socket. The zero Rule: our user and root.
type Rule struct {
	file  *os.File // of the socket, whatever its name becomes; nil: no group may
	group uint32
}

// ForGroup lets in members of a group, whose the socket's file is. Close is the caller's.
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

// Close lets go of the file.
func (r Rule) Close() error {
	if r.file == nil {
		return nil
	}
	return r.file.Close()
}

// Check says why a peer may not use the socket: "", it may.
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

// retry is how long Accept waits when this process has no descriptors left.
const retry = time.Second

// Accept calls serve with each connection to l, until ctx ends or l is closed. serve owns the connection.
func Accept(ctx context.Context, l *net.UnixListener, serve func(*net.UnixConn)) {
	defer context.AfterFunc(ctx, func() { _ = l.SetDeadline(time.Unix(1, 0)) })() // long past
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
		default: // no descriptors are left; connections go on
			select {
			case <-ctx.Done():
			case <-time.After(retry):
			}
		}
	}
}

// changed says what has become of the socket's file.
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

// maxTold is how many users are logged, each once: a process can connect for ever.
const maxTold = 16

// Told remembers which users were logged. Its owner is one goroutine.
type Told struct{ users map[uint32]bool }

// First reports whether to log a user: true once for each, for the first maxTold.
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
