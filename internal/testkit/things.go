package testkit

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/scm"
)

// Patience is the timeout of Eventually, and of other waits in tests.
const Patience = time.Minute

// SocketPair makes a connected pair of Unix stream sockets, which the caller closes.
func SocketPair(t testing.TB) (a, b *net.UnixConn) {
	t.Helper()
	a, b, err := scm.Pair()
	if err != nil {
		t.Fatal(err)
	}
	return a, b
}

// Memfd makes a memory file of a size in bytes, which is closed at the end of the test.
func Memfd(t testing.TB, size int64) *os.File {
	t.Helper()
	fd, err := unix.MemfdCreate(t.Name(), unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "memfd")
	t.Cleanup(func() { _ = f.Close() })
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	return f
}

// Eventually calls f, at most once a millisecond, until it returns true, and fails the test if that takes longer than
// Patience. what describes the condition. It is not for functions of t.Cleanup: the test's context has ended then.
func Eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	defer cancel()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !f() {
		select {
		case <-ctx.Done():
			t.Fatalf("not in time: %s", what)
		case <-tick.C:
		}
	}
}

// Source sets $VNIC_SOURCE, which package guestimages reads, to the checkout of the tests until the test ends.
func Source(t testing.TB) {
	t.Helper()
	for dir := Must(os.Getwd())(t); ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "tools/uroot/build")); err == nil {
			t.Setenv("VNIC_SOURCE", dir)
			return
		}
		if dir == "/" {
			t.Fatal("the tests run outside of a checkout")
		}
	}
}
