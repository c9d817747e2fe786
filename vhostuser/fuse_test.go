package vhostuser

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/fusetest"
	"vnic.dev/vnic/internal/testkit"
)

// TestSilentFUSE: a frontend sends files of FUSE file systems whose servers do not answer; one of the files is opened
// through an overlayfs.
//
// Invariant: vhostuser: No descriptor that a frontend sends makes Serve wait longer than 2 s, not even of a
// file whose server does not answer.
func TestSilentFUSE(t *testing.T) {
	fusetest.Run(t, func(t *testing.T) {
		fs := fusetest.Mount(t)
		gone := fusetest.Mount(t)
		files := map[string]int{"FUSE": fs.File(fs.Dir), "overlay": fs.File(fs.Overlay()), "unmounted": gone.File(gone.Dir)}
		testkit.OK(t, unix.Unmount(gone.Dir, unix.MNT_DETACH))
		fs.Silence()
		gone.Silence()
		for name, fd := range files {
			t.Run(name, func(t *testing.T) { inTime(t, func() { silentFile(t, fd) }, fs, gone) })
		}
	})
}

// inTime calls f. If f has not returned after testkit.Patience, the test fails, and the servers end so that f returns.
func inTime(t *testing.T, f func(), servers ...*fusetest.FS) {
	t.Helper()
	late := time.AfterFunc(testkit.Patience, func() {
		t.Error("waits for the server")
		for _, s := range servers {
			s.End()
		}
	})
	defer late.Stop()
	f()
}

func silentFile(t *testing.T, fd int) {
	bystander, other := newHost(t), newGuest(t)
	b := bystander.connect()
	other.start(b, 2)
	h := newHost(t)
	l := h.connect()
	l.negotiate(t, allProtocol)
	wantRefused(t, "memory", l.AddMemory(fd, 0, userBase, fusetest.Size, 0))
	must(t, l.command(SetBackendReqFD, nil, fd))
	must(t, l.HangUp())
	l = h.connect()
	l.negotiate(t, allProtocol)
	if err := l.SetVringKick(0, fd); err == nil {
		t.Error("a kick: not refused")
	}
	testkit.ErrorIs(t, l.Wait(), ErrBadMessage)
	h.servesAnother()
	// A frontend may send a limited number of such files; then its host's Backend serves no more connections.
	l = h.connect()
	l.negotiate(t, allProtocol)
	sent := 0
	for sent < 100 && errors.Is(l.AddMemory(fd, 0, userBase, fusetest.Size, 0), ErrRefused) {
		sent++
	}
	if sent > 64 {
		t.Fatalf("%d descriptors were taken", sent)
	}
	testkit.ErrorIs(t, l.Wait(), dma.ErrBadFile, "after %d", sent)
	a, theirs := testkit.SocketPair(t)
	testkit.ErrorIs(t, h.back.Serve(t.Context(), theirs), dma.ErrBadFile)
	testkit.OK(t, a.Close())
	bystander.works(b)
	must(t, b.HangUp())
	h = newHost(t)
	ctx, cancel := context.WithCancel(t.Context())
	a, theirs = testkit.SocketPair(t)
	f := NewFrontend(a)
	done := make(chan error, 1)
	go func() { done <- h.back.Serve(ctx, theirs) }()
	_, _, err := f.Negotiate(testFeatures, uint64(allProtocol))
	must(t, err)
	wantRefused(t, "memory", f.AddMemory(fd, 0, userBase, fusetest.Size, 0))
	cancel()
	testkit.ErrorIs(t, <-done, context.Canceled)
	must(t, f.Close())
}

// An error dma.ErrBlocked (a file system does not answer in time), here of MemoryChanged, ends the connection.
func TestServeEndsWhenAFileSystemIsBlocked(t *testing.T) {
	h, g, l := serving(t)
	l.negotiate(t, allProtocol)
	h.FailWith("MemoryChanged", fmt.Errorf("disk: %w", dma.ErrBlocked))
	wantRefused(t, "memory", l.AddMemory(g.fd, 0, userBase, guestSize, 0))
	testkit.ErrorIs(t, l.Wait(), dma.ErrBlocked)
	h.FailWith("MemoryChanged", nil)
}
