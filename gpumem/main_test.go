package gpumem

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// fds counts open descriptors.
func fds(t testing.TB) int {
	t.Helper()
	d, err := os.ReadDir("/proc/self/fd")
	testkit.OK(t, err)
	return len(d)
}

// noLeak checks, when the test has ended, that it left no descriptor and no mapped file.
func noLeak(t testing.TB, files *dma.Files) {
	before := fds(t)
	t.Cleanup(func() {
		if n := fds(t); n != before {
			t.Errorf("%d descriptors, %d before", n, before)
		}
		if n := files.Len(); n != 0 {
			t.Errorf("%d files are still mapped", n)
		}
	})
}

func newGPU(t testing.TB, files *dma.Files, id int, size uint64) *GPU {
	t.Helper()
	g, err := NewGPU(files, id, size, Options{})
	testkit.OK(t, err)
	t.Cleanup(func() {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	})
	return g
}

// memfd returns a file of size bytes, as a guest's RAM is.
func memfd(t testing.TB, size int64) *os.File {
	t.Helper()
	fd, err := unix.MemfdCreate("guest", unix.MFD_CLOEXEC)
	testkit.OK(t, err)
	f := os.NewFile(uintptr(fd), "guest")
	t.Cleanup(func() { f.Close() })
	testkit.OK(t, f.Truncate(size))
	return f
}

// peek reads [off, off+n) of a GPU.
func (g *GPU) peek(t testing.TB, off, n uint64) []byte {
	t.Helper()
	b := make([]byte, n)
	if _, err := unix.Pread(g.fd, b, int64(off)); err != nil {
		t.Fatal(err)
	}
	return b
}

// poke writes b to a GPU.
func (g *GPU) poke(t testing.TB, off uint64, b []byte) {
	t.Helper()
	if _, err := unix.Pwrite(g.fd, b, int64(off)); err != nil {
		t.Fatal(err)
	}
}
