package gpumem

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

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

func (g *GPU) peek(t testing.TB, off, n uint64) []byte {
	t.Helper()
	b := make([]byte, n)
	testkit.OK(t, errOf(unix.Pread(g.fd, b, int64(off))))
	return b
}

func (g *GPU) poke(t testing.TB, off uint64, b []byte) {
	t.Helper()
	testkit.OK(t, errOf(unix.Pwrite(g.fd, b, int64(off))))
}
