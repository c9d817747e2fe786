package gpusocket

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/scm"
	"vnic.dev/vnic/internal/testkit"
)

type gpu struct{ released chan uint64 }

func (g *gpu) take(_ context.Context, size uint64) (*memory, error) {
	if size > 1<<20 {
		return nil, fmt.Errorf("only 1 MiB: %w", unix.ENOMEM)
	}
	fd, err := unix.MemfdCreate("gpu", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		return nil, err
	}
	return &memory{fd, func() error { g.released <- size; return nil }}, nil
}

func start(t *testing.T) (*gpu, string) {
	t.Helper()
	testkit.CheckFDs(t)
	ignore := goleak.IgnoreCurrent()
	g := &gpu{make(chan uint64, 100)}
	path := filepath.Join(t.TempDir(), "run", "gpu")
	s := testkit.Must(listen(path, g.take))(t)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		s.serve(ctx)
		close(done)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
		goleak.VerifyNone(t, ignore)
	})
	return g, path
}

func dial(t *testing.T, path string) *net.UnixConn {
	t.Helper()
	return testkit.Must(net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"}))(t)
}

func asks(t *testing.T, c *net.UnixConn, request []byte, want unix.Errno, wantSize int64) {
	t.Helper()
	testkit.Must(c.Write(request))(t)
	b, oob := make([]byte, 100), make([]byte, 100)
	n, noob, _, _, err := c.ReadMsgUnix(b, oob)
	if err != nil || n != answerLen {
		t.Fatalf("%d bytes, %v", n, err)
	}
	var fds scm.FDs
	defer fds.Close()
	testkit.OK(t, fds.Collect(oob[:noob], 1))
	size := int64(-1)
	if fds.Len() == 1 {
		var st unix.Stat_t
		testkit.OK(t, unix.Fstat(fds.At(0), &st))
		size = st.Size
	}
	if e := unix.Errno(binary.NativeEndian.Uint32(b)); e != want || size != wantSize {
		t.Errorf("errno %v, %d bytes; want %v, %d", e, size, want, wantSize)
	}
}

func request(size uint64) []byte { return binary.NativeEndian.AppendUint64(nil, size) }

func TestProgramGetsMemoryUntilItGoes(t *testing.T) {
	g, path := start(t)
	a, b := dial(t, path), dial(t, path)
	defer b.Close()
	for _, size := range []uint64{4096, 1 << 20} {
		asks(t, a, request(size), 0, int64(size))
	}
	asks(t, b, request(8192), 0, 8192)
	select {
	case size := <-g.released:
		t.Errorf("%d bytes are given back while they are in use", size)
	default:
	}
	_ = a.Close()
	if x, y := <-g.released, <-g.released; x != 4096 || y != 1<<20 {
		t.Errorf("given back: %d, %d", x, y)
	}
	asks(t, b, request(4096), 0, 4096)
}

func TestBadRequestsAreRefused(t *testing.T) {
	_, path := start(t)
	c, other := dial(t, path), dial(t, path)
	defer c.Close()
	defer other.Close()
	for name, bad := range map[string]struct {
		request []byte
		want    unix.Errno
	}{
		"short":       {[]byte{1}, unix.EINVAL},
		"long":        {make([]byte, 5000), unix.EINVAL},
		"no bytes":    {request(0), unix.EINVAL},
		"half a page": {request(2048), unix.EINVAL},
		"much":        {request(1 << 62), unix.ENOMEM},
	} {
		t.Run(name, func(t *testing.T) { asks(t, c, bad.request, bad.want, -1) })
	}
	for range 50 {
		if _, err := other.Write(request(4096)); err != nil {
			break
		}
	}
	asks(t, c, request(4096), 0, 4096)
}

func TestEndGivesAllBack(t *testing.T) {
	ignore := goleak.IgnoreCurrent()
	g := &gpu{make(chan uint64, 1)}
	path := filepath.Join(t.TempDir(), "gpu")
	s := testkit.Must(listen(path, g.take))(t)
	if _, err := listen(path, g.take); err == nil {
		t.Error("two at one place: no error")
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		s.serve(ctx)
		close(done)
	}()
	c := dial(t, path)
	defer c.Close()
	asks(t, c, request(4096), 0, 4096)
	cancel()
	<-done
	testkit.Equal(t, "given back", <-g.released, 4096)
	goleak.VerifyNone(t, ignore)
}
