package serve

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/user"
	"strconv"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/scm"
)

// groupMode is the mode of a socket that a group shares.
const groupMode = 0o660

// groupID is that of a group by its name or number.
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

// share gives the socket to a group; "" leaves it as it is. The kernel then lets in who is of that group
// (unix(7)). First the group, then the mode: the one that it had has never been let in.
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
		err = os.Chmod(l.name, groupMode)
	}
	if err != nil {
		return fmt.Errorf("--socket-group %s: %w", group, plainPath(err))
	}
	l.shared = true
	return nil
}

// maxRefused is how many users are told of, each once: a process can connect for ever.
const maxRefused = 16

// admits says whether the peer may be served: at a socket that is ours alone our user and root only,
// whatever has become of its mode. Each other user is told of once.
func (l *listener) admits(conn *net.UnixConn) bool {
	if l.shared || l.note == nil {
		return true
	}
	cred, err := scm.Peer(conn)
	if err != nil {
		return false
	}
	if mayConnect(cred.Uid, uint32(os.Geteuid())) {
		return true
	}
	if !l.refused[cred.Uid] && len(l.refused) < maxRefused {
		if l.refused == nil {
			l.refused = map[uint32]bool{}
		}
		l.refused[cred.Uid] = true
		l.note("process %d of user %d is refused: the socket is for user %d alone; --socket-group NAME shares it with a "+
			"group", cred.Pid, cred.Uid, os.Geteuid())
	}
	return false
}

func mayConnect(uid, ours uint32) bool { return uid == ours || uid == 0 }
