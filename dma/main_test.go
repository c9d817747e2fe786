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

func memfd(t testing.TB, size int64) int {
	t.Helper()
	return int(testkit.Memfd(t, size).Fd())
}

func truncate(t testing.TB, fd int, size int64) {
	t.Helper()
	testkit.OK(t, unix.Ftruncate(fd, size))
}

// leakFree checks at the test's end that there are no new descriptors since the call, and no mapped files.
func leakFree(t testing.TB) {
	t.Helper()
	testkit.CheckFDs(t)
	t.Cleanup(func() {
		mappings.mu.Lock()
		defer mappings.mu.Unlock()
		if n := len(mappings.files); n != 0 {
			t.Errorf("%d files are mapped still: %v", n, mappings.files)
		}
	})
}

func guestSpace(t testing.TB) *Space {
	t.Helper()
	leakFree(t)
	s := NewSpace("guest", NewFiles())
	t.Cleanup(func() { s.Close() })
	return s
}

func openFile(t testing.TB, size int64) *File {
	t.Helper()
	leakFree(t)
	f := testkit.Must(NewFiles().Open(memfd(t, size), 0))(t)
	t.Cleanup(f.Close)
	return f
}

func add(t testing.TB, s *Space, m Map) {
	t.Helper()
	testkit.OK(t, s.Add(m))
}
