package gpusocket

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/scm"
)

const (
	requestLen = 8 // u64: bytes
	answerLen  = 4 // u32: errno
	page       = 4096
)

type memory struct {
	fd      int // of the dma-buf; closed after sending
	release func() error
}

type server struct {
	l    *net.UnixListener
	take func(ctx context.Context, size uint64) (*memory, error)
	log  func(error) // called for errors, also concurrently; set before serve

	taking sync.Mutex // one take or release at a time: concurrent takes would count the same free pages
}

// listen makes the socket, with mode 0600: for root's programs only.
func listen(path string, take func(context.Context, uint64) (*memory, error)) (*server, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return &server{l: l, take: take, log: func(error) {}}, nil
}

func (s *server) serve(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer func() { _ = s.l.Close() }()
	// A past deadline ends AcceptUnix, as Close would; but Close in another goroutine might still be running
	// when serve has returned.
	defer context.AfterFunc(ctx, func() { _ = s.l.SetDeadline(time.Unix(1, 0)) })()
	for {
		c, err := s.l.AcceptUnix()
		if err != nil {
			if ctx.Err() == nil {
				s.log(err)
			}
			return
		}
		wg.Go(func() {
			defer context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })()
			defer func() { _ = c.Close() }()
			if err := s.program(ctx, c); err != nil && ctx.Err() == nil {
				s.log(err)
			}
		})
	}
}

func (s *server) program(ctx context.Context, c *net.UnixConn) (err error) {
	var held []*memory
	defer func() {
		s.taking.Lock()
		defer s.taking.Unlock()
		for _, m := range held {
			err = errors.Join(err, m.release())
		}
	}()
	for {
		var b [requestLen + 1]byte
		n, err := c.Read(b[:])
		if n == 0 || err != nil {
			return nil
		}
		m, err := s.request(ctx, b[:n])
		if err != nil {
			s.log(err)
			if _, err := c.Write(answer(errno(err))); err != nil {
				return nil
			}
			continue
		}
		held = append(held, m)
		err = (&scm.Socket{UnixConn: c}).WriteFDs(answer(0), []int{m.fd})
		_ = unix.Close(m.fd)
		if err != nil {
			return nil
		}
	}
}

func (s *server) request(ctx context.Context, b []byte) (*memory, error) {
	if len(b) != requestLen {
		return nil, fmt.Errorf("a request of %d bytes, %d expected: %w", len(b), requestLen, unix.EINVAL)
	}
	size := binary.NativeEndian.Uint64(b)
	if size == 0 || size%page != 0 {
		return nil, fmt.Errorf("%d bytes of GPU memory: not whole pages: %w", size, unix.EINVAL)
	}
	s.taking.Lock()
	defer s.taking.Unlock()
	m, err := s.take(ctx, size)
	if err != nil {
		return nil, fmt.Errorf("%d bytes of GPU memory: %w", size, err)
	}
	return m, nil
}

func answer(e unix.Errno) []byte {
	return binary.NativeEndian.AppendUint32(make([]byte, 0, answerLen), uint32(e))
}

func errno(err error) unix.Errno {
	var e unix.Errno
	if errors.As(err, &e) && e != 0 {
		return e
	}
	return unix.EIO
}
