package access

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"

	"vnic.dev/vnic/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func TestWhoMayConnect(t *testing.T) {
	testkit.Equal(t, "ours", mayConnect(1000, 1000), true)
	testkit.Equal(t, "root", mayConnect(0, 1000), true)
	testkit.Equal(t, "another", mayConnect(1001, 1000), false)
}

func TestForGroup(t *testing.T) {
	testkit.LeavesNothing(t)
	dir := t.TempDir()
	path := filepath.Join(dir, "s")
	_, err := ForGroup(path, os.Getegid())
	testkit.ErrorSays(t, err, "no such file")
	_, err = ForGroup(dir, os.Getegid())
	testkit.ErrorSays(t, err, "no socket")
	l := testkit.Must(net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: path}))(t)
	defer l.Close()
	testkit.OK(t, os.Chmod(path, 0o666))
	_, err = ForGroup(path, os.Getegid())
	testkit.ErrorSays(t, err, "has become 0666")
	testkit.OK(t, os.Chmod(path, GroupMode))
	_, err = ForGroup(path, os.Getegid()+1)
	testkit.ErrorSays(t, err, "and has become group")
	r := testkit.Must(ForGroup(path, os.Getegid()))(t)
	defer r.Close()
	testkit.OK(t, os.Rename(path, path+"2"))
	testkit.Equal(t, "renamed", r.changed(), "")
	testkit.OK(t, os.Chmod(path+"2", 0o600))
	testkit.Equal(t, "closed", r.changed(), "")
	testkit.OK(t, os.Chmod(path+"2", 0o662))
	testkit.Equal(t, "opened", r.changed(), "the socket's mode was 0660, and has become 0662")
	testkit.OK(t, os.Remove(path+"2"))
}

func TestTold(t *testing.T) {
	var users Told
	n := 0
	for range 3 {
		for uid := range uint32(100) {
			if users.First(uid) {
				n++
			}
		}
	}
	testkit.Equal(t, "lines", n, maxTold)
}

// Accept ends with ctx, and if its listener has been closed. The zero Rule admits a peer of the test's user, and none
// on a closed connection.
func TestAcceptAndCheck(t *testing.T) {
	path := filepath.Join(t.TempDir(), "socket")
	listen := func() *net.UnixListener {
		return testkit.Must(net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"}))(t)
	}
	l := listen()
	ctx, cancel := context.WithCancel(t.Context())
	served, ended := make(chan *net.UnixConn), make(chan struct{})
	go func() {
		Accept(ctx, l, func(c *net.UnixConn) { served <- c })
		close(ended)
	}()
	client := testkit.Must(net.Dial("unix", path))(t)
	conn := <-served
	peer, why := Rule{}.Check(conn)
	testkit.Equal(t, "why", why, "")
	testkit.Equal(t, "user", peer.Uid, uint32(os.Getuid()))
	testkit.OK(t, errors.Join(Rule{}.Close(), client.Close(), conn.Close()))
	_, why = Rule{}.Check(conn)
	if why == "" {
		t.Error("the peer of a closed connection may use the socket")
	}
	cancel()
	<-ended
	testkit.OK(t, l.Close())
	l = listen()
	testkit.OK(t, l.Close())
	Accept(t.Context(), l, func(*net.UnixConn) { t.Error("a connection to a closed listener") })
}
