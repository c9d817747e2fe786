// Package labtest has guests in this process for tests of whoever serves NICs: our driver, over vhost-user, and our stack.
package labtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"vnic.dev/vnic/driver"
	"vnic.dev/vnic/stack"
)

// Patience is how long anything may take in a test that fails.
const Patience = 30 * time.Second

// Guest is a machine with a NIC, as far as a network sees it.
type Guest struct {
	*stack.Stack
	addr netip.Addr
}

// New makes a guest of a connection to a vhost-user backend.
func New(conn *net.UnixConn, mac string, addrs []netip.Prefix, gpus ...driver.FrontendGPU) (*Guest, error) {
	hw, err := net.ParseMAC(mac)
	if err != nil {
		return nil, err
	}
	n, err := driver.Attach(driver.FrontendOptions{Options: driver.Options{QueuePairs: 1}, Conn: conn, MAC: hw, MTU: 1500, GPUs: gpus})
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

// Dial is New, over a socket that has a name.
func Dial(path, mac string, addrs []netip.Prefix, gpus ...driver.FrontendGPU) (*Guest, error) {
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Net: "unix", Name: path})
	if err != nil {
		return nil, err
	}
	return New(conn, mac, addrs, gpus...)
}

// Exchange sends n bytes from g to peer and back, over TCP, and compares.
func (g *Guest) Exchange(ctx context.Context, peer *Guest, n int) error {
	ctx, cancel := context.WithTimeout(ctx, Patience)
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
	_ = c.SetDeadline(time.Now().Add(Patience))
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

// LeavesNothing has a test fail that leaves goroutines or descriptors.
func LeavesNothing(t *testing.T) {
	t.Helper()
	before := descriptors(t)
	running := goleak.IgnoreCurrent()
	t.Cleanup(func() {
		goleak.VerifyNone(t, running)
		if after := descriptors(t); !slices.Equal(before, after) {
			t.Errorf("descriptors before: %q, after: %q", before, after)
		}
	})
}

// descriptors lists what this process has open. Epoll and eventfd of the Go runtime's poller stay.
func descriptors(t *testing.T) []string {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, e := range entries {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && !strings.HasPrefix(to, "anon_inode:[event") {
			list = append(list, to)
		}
	}
	slices.Sort(list)
	return list
}
