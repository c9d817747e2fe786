package sockfile

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/testkit"
)

func TestOnlyDeadSocketsAreRemoved(t *testing.T) {
	testkit.LeavesNothing(t)
	path := t.TempDir() + "/s"
	testkit.OK(t, RemoveStale(path))
	l := testkit.Must(Bind(path))(t)
	if st := testkit.Must(os.Lstat(path))(t); st.Mode().Perm() != Mode {
		t.Errorf("mode %v", st.Mode())
	}
	testkit.ErrorIs(t, testkit.Err(Bind(path)), unix.EADDRINUSE)
	testkit.ErrorSays(t, RemoveStale(path), fmt.Sprintf("process %d listens there", os.Getpid()))
	testkit.OK(t, l.Close())
	if _, err := os.Lstat(path); err != nil {
		t.Fatalf("closing it has removed the file: %v", err)
	}
	testkit.ErrorIs(t, testkit.Err(Listening(path)), unix.ECONNREFUSED)
	testkit.OK(t, RemoveStale(path))
	testkit.OK(t, testkit.Must(Bind(path))(t).Close())

	testkit.OK(t, os.Remove(path))
	testkit.OK(t, os.WriteFile(path, []byte("precious"), 0o600))
	testkit.ErrorSays(t, RemoveStale(path), "which is no socket")
	testkit.ErrorIs(t, RemoveStale(path+"/below"), unix.ENOTDIR)
	if b := string(testkit.Must(os.ReadFile(path))(t)); b != "precious" {
		t.Errorf("the file is %q", b)
	}
	testkit.ErrorSays(t, testkit.Err(Bind("/"+strings.Repeat("x", 200))), "invalid argument")
}
