package serve

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/access"
)

type source interface {
	// each calls serve for each connection that it does not refuse, until ctx ends or no more can come; serve
	// owns the connection. each returns when all calls of serve have returned.
	each(ctx context.Context, serve func(context.Context, *net.UnixConn))
	// path returns the socket's path for QEMU, or "".
	path() string
	Close() error
}

// open makes the sources of the ports. The caller closes the result, even after an error.
func (o *Options) open(ctx context.Context) (list []source, err error) {
	for i, p := range o.Paths {
		if o.Client {
			list = append(list, o.dialer(i))
			continue
		}
		l, err := listen(ctx, p)
		if err != nil {
			return list, err
		}
		list = append(list, l)
		if err := l.share(o.Group); err != nil {
			return list, fmt.Errorf("socket %s: %w", p, err)
		}
		if o.Broker != nil {
			if l.outside, err = o.Broker.Keep(p, false); err != nil {
				return list, fmt.Errorf("socket %w", err)
			}
		}
		l.note = func(format string, args ...any) { o.Event(p, format, args...) }
	}
	for _, fd := range o.FDs {
		s, err := inherit(fd)
		if err != nil {
			return list, fmt.Errorf("--fd %d: %w", fd, err)
		}
		list = append(list, s)
	}
	return list, nil
}

// maxWaiting bounds a listener's open connections, the served one and waiting ones. Further ones are closed at once.
const maxWaiting = 8

func (l *listener) path() string { return l.name }

func (l *listener) each(ctx context.Context, serve func(context.Context, *net.UnixConn)) {
	var wg sync.WaitGroup
	defer wg.Wait()
	waiting := make(chan struct{}, maxWaiting)
	access.Accept(ctx, l.UnixListener, func(conn *net.UnixConn) {
		if !l.admits(conn) {
			_ = conn.Close()
			return
		}
		select {
		case waiting <- struct{}{}:
			wg.Go(func() {
				defer func() { <-waiting }()
				serve(ctx, conn)
			})
		default:
			_ = conn.Close()
		}
	})
}

// dialer is a socket that QEMU listens at.
type dialer struct {
	name    string
	connect func(context.Context) (*net.UnixConn, error)
}

func (o *Options) dialer(i int) dialer {
	name := o.Paths[i]
	if o.Broker != nil {
		return dialer{name, func(ctx context.Context) (*net.UnixConn, error) { return o.Broker.Connect(ctx, i) }}
	}
	return dialer{name, func(context.Context) (*net.UnixConn, error) {
		return net.DialUnix("unix", nil, &net.UnixAddr{Net: "unix", Name: name})
	}}
}

func (d dialer) path() string { return d.name }
func (d dialer) Close() error { return nil }

// intervals between attempts to connect: they double from redial to maxRedial
const (
	redial    = 50 * time.Millisecond
	maxRedial = time.Second
)

func (d dialer) each(ctx context.Context, serve func(context.Context, *net.UnixConn)) {
	for wait := redial; ctx.Err() == nil; wait = min(2*wait, maxRedial) {
		if conn, err := d.connect(ctx); err == nil {
			serve(ctx, conn)
			wait = redial
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
}

// once is an inherited connected socket.
type once struct {
	conn *net.UnixConn
	used sync.Once
}

func (o *once) path() string { return "" }

func (o *once) each(ctx context.Context, serve func(context.Context, *net.UnixConn)) {
	o.used.Do(func() { serve(ctx, o.conn) })
}

func (o *once) Close() (err error) {
	o.used.Do(func() { err = o.conn.Close() })
	return err
}

// inherit makes a source of an inherited stream socket, which listens or is connected. The source has a copy of the
// socket: inherit closes fd.
func inherit(fd int) (source, error) {
	if domain, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN); err != nil || domain != unix.AF_UNIX {
		return nil, errors.New("not a Unix domain socket")
	}
	if kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE); err != nil || kind != unix.SOCK_STREAM {
		return nil, errors.New("not a stream socket")
	}
	listens, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
	if err != nil {
		return nil, os.NewSyscallError("getsockopt", err)
	}
	f := os.NewFile(uintptr(fd), "socket")
	defer f.Close()
	if listens != 0 {
		l, err := net.FileListener(f)
		if err != nil {
			return nil, err
		}
		u := l.(*net.UnixListener)
		name := u.Addr().String()
		if name == "" || name[0] == '@' {
			name = ""
		}
		return &listener{UnixListener: u, name: name}, nil
	}
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	return &once{conn: c.(*net.UnixConn)}, nil
}
