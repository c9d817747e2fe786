package lab_test

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/testkit"
)

// Invariant: lab: A frontend whose memory occupies more than the limit loses its connection, and
// others continue.
func TestFrontendMemoryIsBounded(t *testing.T) {
	testkit.LeavesNothing(t)
	const most = 1 << 30 // more than a guest in this process has
	w := open(t, lab.Uniform(3, lab.NIC{Model: lab.Virtio}, 0), lab.Options{FrontendMemory: most})
	a, b := attach(t, w.Port(0)), attach(t, w.Port(1))
	p := w.Port(2)
	client, server := testkit.SocketPair(t)
	defer client.Close()
	done := make(chan error, 1)
	go func() { done <- p.Serve(t.Context(), server) }()
	sparse := testkit.Memfd(t, 1<<40)
	testkit.OK(t, p.Space().Add(dma.Map{Size: 1 << 40, FD: int(sparse.Fd())}))
	fill := func(off, n int64) {
		testkit.OK(t, unix.Fallocate(int(sparse.Fd()), unix.FALLOC_FL_KEEP_SIZE, off, n))
	}
	fill(1<<30, 4096)
	if n, counted := p.FrontendMemory(); n != 4096 || !counted {
		t.Errorf("%d bytes, %v", n, counted)
	}
	small := open(t, lab.Uniform(1, lab.NIC{Model: lab.Virtio}, 0), lab.Options{FrontendMemory: 64 << 10})
	q := small.Port(0)
	peer, end := testkit.SocketPair(t)
	defer peer.Close()
	ended := make(chan error, 1)
	go func() { ended <- q.Serve(t.Context(), end) }()
	testkit.OK(t, q.Space().Add(dma.Map{Size: 1 << 40, FD: int(sparse.Fd())}))
	fill(0, 128<<10)
	err := <-ended
	testkit.ErrorIs(t, err, lab.ErrMemory)
	testkit.ErrorSays(t, err, "occupy 132K, more than 64K (--frontend-memory)")
	if _, err := peer.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the connection is open: %v", err)
	}
	testkit.OK(t, q.Space().Close())
	testkit.OK(t, errors.Join(a.Exchange(t.Context(), b, 100_000), a.Close(), b.Close()))
	unbounded := open(t, lab.Uniform(1, lab.NIC{Model: lab.Virtio}, 0), lab.Options{})
	if n, counted := unbounded.Port(0).FrontendMemory(); counted {
		t.Errorf("%d bytes are counted without a bound", n)
	}
	testkit.OK(t, client.Close())
	testkit.OK(t, <-done)
	testkit.OK(t, p.Space().Close())
}
