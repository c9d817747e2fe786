// Package access decides who may use a socket of `vnic serve`.
//
// vnic's user and root may use it, and, with ForGroup, members of the group that owns the socket's file. When a process
// connects, the kernel checks the mode and the group of that file (connect(2) needs the right to write; unix(7)), and
// knows all groups of the process. The package does not check these groups again (SO_PEERGROUPS): the result would be
// the same. For a peer that is neither vnic's user nor root, a Rule of ForGroup checks that the file still has its
// group and a mode that gives other users no right: if chmod or chgrp has changed this, nobody of the group may use the
// socket. An access control list, on the file or as the default of its directory, admits the users that its writer
// names.
//
// A member may pass a connected socket on to other processes.
//
// A check costs at most three system calls. With Told a caller logs one refusal for each user, of at most 16 users.
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

// Rule decides who may use a socket. The zero Rule admits vnic's user and root.
type Rule struct {
	file  *os.File // the socket's file, also after a renaming; nil: no group is admitted
	group uint32
}

// ForGroup returns a Rule that also admits the members of a group, which must own the socket's file
// at path. The caller closes the Rule.
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

// Close closes the socket's file.
func (r Rule) Close() error {
	if r.file == nil {
		return nil
	}
	return r.file.Close()
}

// Check returns the peer, empty if the kernel does not report it, and why it may not use the socket; "": it may.
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

// retry is how long Accept waits after an error that may pass, for example when this process has no
// descriptors left.
const retry = time.Second

// Accept calls serve for each connection to l, until ctx ends or l is closed. serve takes the connection over.
func Accept(ctx context.Context, l *net.UnixListener, serve func(*net.UnixConn)) {
	defer context.AfterFunc(ctx, func() { _ = l.SetDeadline(time.Unix(1, 0)) })() // a past deadline makes AcceptUnix fail
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
		default: // for example, no descriptors are left
			select {
			case <-ctx.Done():
			case <-time.After(retry):
			}
		}
	}
}

// changed describes why the file is no socket, has another group, or has a mode with more rights than GroupMode, or why
// this cannot be checked; "": none of these.
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

// maxTold is how many users First allows to be logged, because a process can connect any number of times.
const maxTold = 16

// Told remembers which users, or processes, were logged. Its methods must not be called at the same
// time.
type Told struct{ users map[uint32]bool }

// First reports whether to log a user: true at the first call with each of the first maxTold users.
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
