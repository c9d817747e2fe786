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

// share lets members of a group connect to the socket (unix(7)), and sets l.rule; for the group "" it does nothing. It
// changes the file's group before the mode: the former group never gets access.
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

// admits reports whether the peer may use the socket. If l.note is nil, everybody may. Else vnic's user and root may.
// After share with a group other users may, too, while the file has this group, and a mode that gives users outside of
// the group no right. admits notes each of the first refused users once (access.Told).
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
