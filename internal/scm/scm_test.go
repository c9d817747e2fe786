package scm_test

import (
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/scm"
)

func open(t *testing.T, n int) []int {
	t.Helper()
	fds := make([]int, n)
	for i := range fds {
		fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
		if err != nil {
			t.Fatal(err)
		}
		fds[i] = fd
	}
	return fds
}

func closed(fd int) bool {
	_, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	return errors.Is(err, unix.EBADF)
}

func TestEveryDescriptorHasOneOwner(t *testing.T) {
	fds := open(t, 5)
	var d scm.FDs
	err := d.Collect(append(unix.UnixCredentials(&unix.Ucred{Pid: 1}), unix.UnixRights(fds...)...), 3)
	if !errors.Is(err, scm.ErrAncillary) || !strings.Contains(err.Error(), "5 descriptors, more than 3") {
		t.Errorf("five where three may come: %v", err)
	}
	for i, want := range []bool{false, false, false, true, true} {
		if closed(fds[i]) != want {
			t.Errorf("descriptor %d: closed %v", i, !want)
		}
	}
	if d.Len() != 3 || d.At(1) != fds[1] {
		t.Errorf("%d descriptors, the second %d", d.Len(), d.At(1))
	}
	kept := d.Take(1)
	d.Close()
	d.Close()
	if !closed(fds[0]) || closed(kept) || !closed(fds[2]) || d.Len() != 0 {
		t.Errorf("after Close: %v %v %v, %d", closed(fds[0]), closed(kept), closed(fds[2]), d.Len())
	}
	scm.Close(kept)
	scm.Close(-1)
}

func TestBadAncillaryData(t *testing.T) {
	var d scm.FDs
	if err := d.Collect([]byte{1, 2, 3}, 1); d.Len() != 0 || err != nil && !errors.Is(err, scm.ErrAncillary) {
		t.Errorf("three bytes: %v", err)
	}
	short := unix.UnixRights(0)
	if err := d.Collect(short[:len(short)-5], 1); !errors.Is(err, scm.ErrAncillary) {
		t.Errorf("a message longer than what there is: %v", err)
	}
}

func TestDup(t *testing.T) {
	fd := open(t, 1)[0]
	defer scm.Close(fd)
	other, err := scm.Dup(fd)
	if err != nil || other == fd || closed(other) {
		t.Errorf("dup: %d %v", other, err)
	}
	scm.Close(other)
	if n, err := scm.Dup(-1); n != -1 || err != nil {
		t.Errorf("dup of none: %d %v", n, err)
	}
	if _, err := scm.Dup(1 << 20); !errors.Is(err, unix.EBADF) {
		t.Errorf("dup of what is not open: %v", err)
	}
}

func TestCheckEvent(t *testing.T) {
	fd := open(t, 1)[0]
	defer scm.Close(fd)
	if err := scm.CheckEvent(fd); err != nil {
		t.Error(err)
	}
	if fl, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0); err != nil || fl&unix.O_NONBLOCK == 0 {
		t.Errorf("flags %#x, %v", fl, err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = r.Close(), w.Close() }()
	if err := scm.CheckEvent(int(w.Fd())); !errors.Is(err, unix.EINVAL) {
		t.Errorf("a pipe: %v", err)
	}
	if err := scm.CheckEvent(-1); err == nil {
		t.Error("none: no error")
	}
}
