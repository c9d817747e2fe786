package gpumem

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// errOf returns the last result of a call as an error.
func errOf(results ...any) error {
	err, _ := results[len(results)-1].(error)
	return err
}

func wantErr(t testing.TB, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
}

// noLeak checks at the end of the test that it left no descriptor and no mapped file.
func noLeak(t testing.TB, files *dma.Files) {
	testkit.CheckFDs(t)
	t.Cleanup(func() { testkit.Equal(t, "files that are still mapped", files.Len(), 0) })
}

func newGPU(t testing.TB, files *dma.Files, id int, size uint64) *GPU {
	t.Helper()
	g := testkit.Must(NewGPU(files, id, size, Options{}))(t)
	t.Cleanup(func() {
		testkit.NoError(t, g.Close())
	})
	return g
}

// peek reads [off, off+n) of a GPU.
func (g *GPU) peek(t testing.TB, off, n uint64) []byte {
	t.Helper()
	b := make([]byte, n)
	testkit.OK(t, errOf(unix.Pread(g.fd, b, int64(off))))
	return b
}

// poke writes b to a GPU.
func (g *GPU) poke(t testing.TB, off uint64, b []byte) {
	t.Helper()
	testkit.OK(t, errOf(unix.Pwrite(g.fd, b, int64(off))))
}
