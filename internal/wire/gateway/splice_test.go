package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/testkit"
)

func TestSpliceThroughFullSockets(t *testing.T) {
	const size = 3 << 20
	out, in := noise(size, 1), noise(size, 2)
	ends := make(chan error, 1)
	l, port := listenTCP(t)
	serveTCP(t, l, func(c net.Conn) {
		tc := c.(*net.TCPConn)
		testkit.OK(t, errors.Join(tc.SetReadBuffer(64<<10), tc.SetWriteBuffer(64<<10)))
		ends <- both(tc, in, out)
	})
	w := newRig(t, nil, func(g *Gateway) {
		g.dial = func(ctx context.Context, network string, to permit) (net.Conn, error) {
			c, err := dialHost(ctx, network, to)
			if err == nil {
				err = c.(*net.TCPConn).SetWriteBuffer(32 << 10)
			}
			return c, err
		}
	})
	c := w.guest(1).mustDial(own4(port))
	testkit.OK(t, errors.Join(both(c, out, in), <-ends, c.Close()))
	testkit.OK(t, w.g.Close())
	for i := range w.g.out.slots {
		if w.g.out.slots[i].pkt != nil {
			t.Errorf("slot %d still has a packet of netstack's", i)
		}
	}
}

// both sends the bytes of send in pieces of many lengths and then calls CloseWrite; at the same time it receives until
// the end of the stream, and compares the bytes with expect.
func both(c halfCloser, send, expect []byte) error {
	var g errgroup.Group
	g.Go(func() error {
		for n := 1; len(send) > 0; n = n*5%200_003 + 1 {
			n := min(n, len(send))
			if _, err := c.Write(send[:n]); err != nil {
				return fmt.Errorf("sending: %w", err)
			}
			send = send[n:]
		}
		return c.CloseWrite()
	})
	g.Go(func() error {
		var got bytes.Buffer // filled by short reads, so that the other end has to wait
		_, err := io.CopyBuffer(struct{ io.Writer }{&got}, struct{ io.Reader }{c}, make([]byte, 777))
		if err == nil && !bytes.Equal(got.Bytes(), expect) {
			err = fmt.Errorf("%d bytes came of %d, or others", got.Len(), len(expect))
		}
		return err
	})
	return g.Wait()
}

func TestSocketWriterGoesOn(t *testing.T) {
	fds := testkit.Must(unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0))(t)
	defer unix.Close(fds[0])
	defer unix.Close(fds[1])
	testkit.OK(t, unix.SetsockoptInt(fds[0], unix.SOL_SOCKET, unix.SO_SNDBUF, 4608))
	data := noise(4<<20, 3)
	var got []byte
	drain := func() {
		b := make([]byte, 5000)
		n, err := unix.Read(fds[1], b)
		testkit.OK(t, err)
		got = append(got, b[:n]...)
	}
	s := socketWriter{fd: fds[0], chunk: make([]byte, 0, chunkLen)}
	collected, direct := 0, 0 // how often the socket was full with collected data left, or within a long piece
	for rest, n := data, 1; len(rest) > 0; n = n*5%20_011 + 1 {
		k, err := s.Write(rest[:min(n, len(rest))])
		rest = rest[k:]
		for err != nil && s.full {
			if len(s.chunk) > 0 {
				collected++
			} else if k > 0 {
				direct++
			}
			drain()
			s.full = false
			err = nil
			s.flush(nil)
			if s.full {
				err = errFull
			}
		}
		testkit.OK(t, errors.Join(err, s.err))
	}
	for s.flush(nil); len(s.chunk) > 0; s.flush(nil) {
		drain()
		s.full = false
	}
	for len(got) < len(data) {
		drain()
	}
	if !bytes.Equal(got, data) {
		t.Error("other bytes came")
	}
	if collected == 0 || direct == 0 {
		t.Errorf("%d writes ended in the middle of what was collected, %d in the middle of a long piece", collected, direct)
	}
}
