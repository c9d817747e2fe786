package trusted

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func TestOwnersAndModes(t *testing.T) {
	const ours = 1000
	for _, c := range []struct {
		name string
		rule Rule
		uid  uint32
		mode uint32
		want string
	}{
		{"private, ours", Private, ours, unix.S_IFDIR | 0o700, ""},
		{"private, root's", Private, 0, unix.S_IFDIR | 0o700, "belongs to user 0"},
		{"private, readable", Private, ours, unix.S_IFDIR | 0o750, "open to others, mode 0750: chmod 700 it"},
		{"ours", ReadOnly, ours, unix.S_IFDIR | 0o755, ""},
		{"root's", ReadOnly, 0, unix.S_IFDIR | 0o755, ""},
		{"root's, which a group writes", ReadOnly, 0, unix.S_IFDIR | 0o775, "mode 0775: chmod 755 it"},
		{"ours, which all write", ReadOnly, ours, unix.S_IFREG | 0o646, "mode 0646: chmod 644 it"},
		{"another's", ReadOnly, 2000, unix.S_IFREG | 0o644, "belongs to user 2000"},
		{"another's link", ReadOnly, 2000, unix.S_IFLNK | 0o777, "belongs to user 2000"},
		{"our link", ReadOnly, ours, unix.S_IFLNK | 0o777, ""},
		{"sticky, which all write", ReadOnly, 0, unix.S_IFDIR | unix.S_ISVTX | 0o777, "mode 0777: chmod 755 it"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := c.rule.check("/x", &unix.Stat_t{Uid: c.uid, Mode: c.mode}, ours)
			if c.want == "" {
				testkit.NoError(t, err)
				return
			}
			testkit.ErrorIs(t, err, Err)
			testkit.ErrorSays(t, err, "/x (not to be trusted: ")
			testkit.ErrorSays(t, err, c.want)
			testkit.Equal(t, "another's", OtherOwner(err), c.uid != ours && !(c.uid == 0 && c.rule.Roots))
		})
	}
}

func TestLinksAreNotOpened(t *testing.T) {
	testkit.LeavesNothing(t)
	dir := filepath.Join(t.TempDir(), "dir")
	testkit.OK(t, os.Mkdir(dir, 0o700))
	testkit.OK(t, os.Symlink(dir, dir+"-link"))
	testkit.OK(t, testkit.Must(Private.OpenDir(dir))(t).Close())
	for _, path := range []string{dir + "-link", dir + "-none", "/proc/self/exe"} {
		if d, err := ReadOnly.OpenDir(path); err == nil {
			t.Errorf("%s is opened: %v", path, d.Close())
		}
	}
}
