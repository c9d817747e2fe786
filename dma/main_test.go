package dma

import (
	"os"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	"vnic.dev/vnic/internal/testkit"
)

func TestMain(m *testing.M) {
	if os.Getenv(overlapEnv) != "" {
		faultInOverlap()
		return
	}
	goleak.VerifyTestMain(m)
}

// memfd returns a memory file of size bytes that is closed with the test.
func memfd(t testing.TB, size int64) int {
	t.Helper()
	fd, err := unix.MemfdCreate("dma-test", unix.MFD_CLOEXEC)
	testkit.OK(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	truncate(t, fd, size)
	return fd
}

func truncate(t testing.TB, fd int, size int64) {
	t.Helper()
	testkit.OK(t, unix.Ftruncate(fd, size))
}

// leakFree fails the test if, at its end, descriptors are open that are not open now, or files are mapped.
func leakFree(t testing.TB) {
	t.Helper()
	before := openFDs(t)
	t.Cleanup(func() {
		if after := openFDs(t); after != before {
			t.Errorf("%d descriptors are open, %d before", after, before)
		}
		mappings.mu.Lock()
		defer mappings.mu.Unlock()
		if n := len(mappings.files); n != 0 {
			t.Errorf("%d files are mapped still: %v", n, mappings.files)
		}
	})
}

func openFDs(t testing.TB) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	testkit.OK(t, err)
	return len(list)
}

// add maps m and fails the test if it cannot.
func add(t testing.TB, s *Space, m Map) {
	t.Helper()
	testkit.OK(t, s.Add(m))
}
