package serve

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/testkit"
)

// as connects to a socket as another user, and returns the errno of connect(2); 0: it connected.
func as(t *testing.T, dir, path string, uid uint32, groups ...uint32) syscall.Errno {
	t.Helper()
	c := command(t, dir)
	c.Env = append(os.Environ(), stranger+"="+path)
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid, Groups: groups}}
	if err := c.Run(); c.ProcessState == nil {
		t.Fatal(err)
	}
	return syscall.Errno(c.ProcessState.ExitCode())
}

func publicDir(t *testing.T) string {
	t.Helper()
	dir := testkit.Must(os.MkdirTemp("/tmp", "vnic-access"))(t)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	testkit.OK(t, os.Chmod(dir, 0o755))
	return dir
}

// Another user is refused, even if the socket's mode lets everybody connect, and is noted once.
//
// Invariant: vnic serve: At sockets that vnic makes, peers of other users, except root, are served
// only if --socket-group allows it.
func TestOtherUsersAreRefused(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can be another user: the rest was not tried")
	}
	testkit.LeavesNothing(t)
	dir := publicDir(t)
	path := filepath.Join(dir, "s")
	s := serve(t, Options{Paths: []string{path}})
	testkit.OK(t, os.Chmod(path, 0o666)) // a careless user may do that
	for range 3 {
		testkit.Equal(t, "connect", as(t, dir, path, 65534), 0)
	}
	s.noted("of user 65534 is refused: the socket is for user 0 alone; --socket-group NAME shares it with a group")
	testkit.OK(t, s.guest(0).Close())
	s.noted("hung up")
	for len(s.notes) > 0 {
		if n := <-s.notes; strings.Contains(n, "is refused") {
			t.Error("noted again: ", n)
		}
	}
}

// Members of the socket's group can connect, and other users cannot. If the file's group or mode changes, the peer of
// another user is refused.
//
// Invariant: vnic serve: At sockets that vnic makes, peers of other users, except root, are served
// only if --socket-group allows it.
func TestSocketGroup(t *testing.T) {
	testkit.LeavesNothing(t)
	dir := publicDir(t)
	path := filepath.Join(dir, "s")
	group := os.Getegid()
	if os.Geteuid() == 0 {
		group = 54321
	}
	s := serve(t, Options{Paths: []string{path}, Group: strconv.Itoa(group)})
	st := testkit.Must(os.Lstat(path))(t)
	testkit.Equal(t, "mode", st.Mode(), fs.ModeSocket|0o660)
	testkit.Equal(t, "group", int(st.Sys().(*syscall.Stat_t).Gid), group)
	testkit.OK(t, s.guest(0).Close())
	if os.Geteuid() == 0 {
		testkit.Equal(t, "of no group", as(t, dir, path, 65534), unix.EACCES)
		testkit.Equal(t, "of the group", as(t, dir, path, 65534, 54321), 0)
		moved := path + "-moved"
		for want, spoil := range map[string]func() error{
			"the socket's mode was 0660, and has become 0666":            func() error { return os.Chmod(moved, 0o666) },
			"the socket was group 54321's, and has become group 65534's": func() error { return os.Lchown(moved, -1, 65534) },
		} {
			s := serve(t, Options{Paths: []string{path + "2"}, Group: strconv.Itoa(group)})
			testkit.OK(t, os.Rename(path+"2", moved)) // the server has the file open: its name does not matter
			testkit.OK(t, spoil())
			testkit.Equal(t, "connect", as(t, dir, moved, 65534), 0)
			s.noted("of user 65534 is refused: " + want)
			s.end()
			testkit.OK(t, os.Remove(moved))
		}
	}
	s.end()
	if list, err := os.ReadDir(dir); err != nil || len(list) > 1 { // the function as has left its copy of the program
		t.Errorf("left: %v, %v", list, err)
	}
}

func TestSocketGroupMistakes(t *testing.T) {
	nic := lab.NIC{Model: lab.Virtio}
	for want, o := range map[string]Options{
		"--socket-group no-such-group: there is no such group": {Paths: []string{"s"}, Group: "no-such-group"},
		"--socket-group -1: there is no such group":            {Paths: []string{"s"}, Group: "-1"},
		"--socket-group and --client":                          {Paths: []string{"s"}, Group: "root", Client: true},
		"--socket-group and --fd":                              {FDs: []int{3}, Group: "root"},
	} {
		o.NIC = nic
		testkit.ErrorSays(t, o.Check(), want)
	}
	if os.Geteuid() != 0 {
		l := testkit.Must(listen(t.Context(), filepath.Join(t.TempDir(), "s")))(t)
		testkit.ErrorSays(t, l.share("0"), "this user is not of that group")
		testkit.OK(t, l.Close())
	}
	if _, err := exec.LookPath("getent"); err == nil {
		testkit.Must(groupID("root"))(t)
	}
}
