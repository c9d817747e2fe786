package ncdevmem

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"

	"vnic.dev/vnic/devmem"
)

func (l *bench) listen(addr netip.AddrPort) (devmem.Listener, error) {
	ln, err := l.peer.Listen(addr)
	if err != nil {
		return nil, fmt.Errorf("peer listens on %v: %w", addr, err)
	}
	return ln, nil
}

func read(ctx context.Context, in devmem.Listener, each func([]byte) error) error {
	stop := context.AfterFunc(ctx, func() { _ = in.Close() })
	c, err := in.AcceptConn()
	stop()
	if err != nil {
		return errors.Join(context.Cause(ctx), err)
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { _ = c.Close() })()
	buf := make([]byte, 1<<18)
	for {
		n, err := c.Read(buf)
		if n > 0 {
			if err := each(buf[:n]); err != nil {
				_ = c.SetLinger(0)
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return errors.Join(context.Cause(ctx), fmt.Errorf("peer reads: %w; %s", err, c.State()))
		}
	}
}

// write connects, writes size bytes that fill makes, closes its direction, and waits for the end of the other one.
func (l *bench) write(ctx context.Context, from, to netip.AddrPort, size uint64,
	fill func(b []byte, off uint64)) error {
	c, err := l.peer.Dial(ctx, from, to)
	if err != nil {
		return fmt.Errorf("peer connects from %v to %v: %w", from, to, err)
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { _ = c.Close() })()
	buf := make([]byte, 1<<18)
	for off := uint64(0); off < size; {
		b := buf[:min(uint64(len(buf)), size-off)]
		fill(b, off)
		if _, err := c.Write(b); err != nil {
			return errors.Join(context.Cause(ctx), fmt.Errorf("peer writes at %d of %d: %w", off, size, err))
		}
		off += uint64(len(b))
	}
	if err := c.CloseWrite(); err != nil {
		return fmt.Errorf("peer closes: %w", err)
	}
	if n, err := c.Read(buf); n != 0 || !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
		return errors.Join(context.Cause(ctx), fmt.Errorf("peer reads %d bytes and %v, where the end was expected", n, err))
	}
	return nil
}
