package scm_test

import (
	"errors"
	"io"
	"strings"
	"testing"

	"vnic.dev/vnic/internal/scm"
	"vnic.dev/vnic/internal/testkit"
)

func TestSocketCarriesDescriptors(t *testing.T) {
	testkit.CheckFDs(t)
	a, b := testkit.SocketPair(t)
	defer a.Close()
	bad := errors.New("bad message")
	from, to := scm.Socket{UnixConn: a}, scm.Socket{UnixConn: b, MaxFDs: 2, Bad: bad}
	defer to.Close()
	file := int(testkit.Memfd(t, 1).Fd())
	var fds scm.FDs
	read := func(want string, n int) error {
		t.Helper()
		buf := make([]byte, 10)
		k, err := to.ReadFDs(buf, &fds)
		if string(buf[:k]) != want || fds.Len() != n {
			t.Errorf("%q with %d descriptors, want %q with %d", buf[:k], fds.Len(), want, n)
		}
		fds.Close()
		return err
	}
	testkit.OK(t, from.WriteFDs([]byte("none"), nil))
	testkit.OK(t, read("none", 0))
	testkit.OK(t, from.WriteFDs([]byte("two"), []int{file, file}))
	testkit.OK(t, read("two", 2))
	testkit.OK(t, from.WriteFDs([]byte("nine"), []int{file, file, file, file, file, file, file, file, file}))
	if err := read("nine", 2); !errors.Is(err, bad) || !strings.Contains(err.Error(), "2 descriptors") {
		t.Errorf("nine descriptors: %v", err)
	}
	testkit.OK(t, from.Close())
	testkit.ErrorIs(t, read("", 0), io.EOF, "at the end")
	if err := from.WriteFDs([]byte("more"), nil); err == nil {
		t.Error("written after the end")
	}
	testkit.OK(t, to.Close())
	if err := read("", 0); err == nil {
		t.Error("read after the end")
	}
}
