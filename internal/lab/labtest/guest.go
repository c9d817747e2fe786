// Package labtest makes guests in this process: vnic's TCP stack on vnic's driver, over vhost-user.
package labtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"testing"
	"time"

	"vnic.dev/vnic/internal/driver"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/stack"
)

// Guest is a machine with one NIC, in this process.
type Guest struct {
	*stack.Stack
	addr netip.Addr
}

// New makes a guest on a connection to a vhost-user backend.
func New(conn *net.UnixConn, mac string, addrs []netip.Prefix, gpus ...driver.FrontendGPU) (*Guest, error) {
	hw, err := net.ParseMAC(mac)
	if err != nil {
		return nil, err
	}
	n, err := driver.Attach(driver.FrontendOptions{Options: driver.Options{QueuePairs: 1}, Conn: conn, MAC: hw, MTU: 1500,
		GPUs: gpus})
	if err != nil {
		return nil, err
	}
	s, err := stack.New(n, n.Control(), stack.Options{Addresses: addrs})
	if err != nil {
		_ = n.Close()
		return nil, err
	}
	return &Guest{s, addrs[0].Addr()}, nil
}

// Dial is New on a connection to the Unix socket at path.
func Dial(path, mac string, addrs []netip.Prefix, gpus ...driver.FrontendGPU) (*Guest, error) {
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Net: "unix", Name: path})
	if err != nil {
		return nil, err
	}
	return New(conn, mac, addrs, gpus...)
}

// Exchange sends n bytes from g to peer and back by TCP, and compares them.
func (g *Guest) Exchange(ctx context.Context, peer *Guest, n int) error {
	ctx, cancel := context.WithTimeout(ctx, testkit.Patience)
	defer cancel()
	l, err := peer.Listen(netip.AddrPortFrom(peer.addr, 7))
	if err != nil {
		return err
	}
	defer l.Close()
	echoed := make(chan error, 1)
	go func() {
		c, err := l.AcceptConn()
		if err == nil {
			_, err = io.Copy(c, io.LimitReader(c, int64(n)))
			_ = c.Close()
		}
		echoed <- err
	}()
	c, err := g.Dial(ctx, netip.AddrPort{}, netip.AddrPortFrom(peer.addr, 7))
	if err != nil {
		_ = l.Close()
		return errors.Join(err, <-echoed)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(testkit.Patience))
	want := make([]byte, n)
	for i := range want {
		want[i] = byte(i * 131 >> 3)
	}
	go func() { _, _ = c.Write(want) }()
	got := make([]byte, n)
	if _, err := io.ReadFull(c, got); err != nil {
		_ = l.Close()
		_ = c.Close()
		return fmt.Errorf("%w; the peer: %w", err, <-echoed)
	}
	if !bytes.Equal(got, want) {
		return fmt.Errorf("%d bytes came back changed", n)
	}
	return <-echoed
}

// Log returns a log in which a message at level Error or above fails the test; it drops other messages.
func Log(t testing.TB) *slog.Logger { return slog.New(failing{slog.DiscardHandler, t}) }

type failing struct {
	slog.Handler
	t testing.TB
}

func (f failing) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelError }

func (f failing) Handle(_ context.Context, r slog.Record) error {
	words := r.Message
	r.Attrs(func(a slog.Attr) bool { words += " " + a.String(); return true })
	f.t.Error(words)
	return nil
}

func (f failing) WithAttrs([]slog.Attr) slog.Handler { return f }
func (f failing) WithGroup(string) slog.Handler      { return f }
