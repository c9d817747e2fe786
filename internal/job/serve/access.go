package serve

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/user"
	"strconv"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/access"
)

// groupID returns the id of a group, by the group's name or number.
func groupID(name string) (int, error) {
	g, err := user.LookupGroup(name)
	if n, e := strconv.ParseUint(name, 10, 31); err != nil && e == nil {
		return int(n), nil
	}
	if err != nil {
		return 0, errors.New("there is no such group: give one of getent group, or its number")
	}
	return strconv.Atoi(g.Gid)
}

// share gives the socket's file to a group, unless group is "". The kernel then lets members of the group connect
// (unix(7)). It changes the group before the mode, so that the file's former group never gets access.
func (l *listener) share(group string) error {
	if group == "" {
		return nil
	}
	id, err := groupID(group)
	if err == nil {
		err = os.Lchown(l.name, -1, id)
	}
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("--socket-group %s: this user is not of that group, and so cannot give it a file: run vnic as one "+
			"who is, or as root", group)
	}
	if err == nil {
		err = os.Chmod(l.name, access.GroupMode)
	}
	if err == nil {
		l.rule, err = access.ForGroup(l.name, id)
	}
	if err != nil {
		return fmt.Errorf("--socket-group %s: %w", group, err)
	}
	return nil
}

// admits reports whether the peer may use the socket by l.rule, which does not depend on the mode that somebody may
// have given the file meanwhile. It notes a refused user at most once. A listener without note admits everybody.
func (l *listener) admits(conn *net.UnixConn) bool {
	if l.note == nil {
		return true
	}
	peer, why := l.rule.Check(conn)
	if why == "" {
		return true
	}
	if l.reported.First(peer.Uid) {
		l.note("process %d of user %d is refused: %s", peer.Pid, peer.Uid, why)
	}
	return false
}
