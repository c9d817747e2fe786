package kernel

import (
	"net"
	"testing"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/testkit"
)

// The case "net" measures Read of a *net.TCPConn, for comparison; a Conn sends to it. In the other cases a Conn
// receives.
func BenchmarkReceive(b *testing.B) {
	frags := make([]devmem.Frag, 64)
	benchReceive(b, "recvdevmem", func(c *Conn, h net.Conn) (func(p []byte) (int, error), net.Conn) {
		return func(p []byte) (int, error) {
			n, _, _, err := c.RecvDevmem(frags, p, 0)
			return n, err
		}, h
	})
	benchReceive(b, "read", func(c *Conn, h net.Conn) (func(p []byte) (int, error), net.Conn) { return c.Read, h })
	benchReceive(b, "net", func(c *Conn, h net.Conn) (func(p []byte) (int, error), net.Conn) { return h.Read, c })
}

func benchReceive(b *testing.B, name string, ends func(*Conn, net.Conn) (recv func([]byte) (int, error),
	from net.Conn)) {
	b.Run(name, func(b *testing.B) { receiveAll(b, ends) })
}

func receiveAll(b *testing.B, ends func(*Conn, net.Conn) (recv func([]byte) (int, error), from net.Conn)) {
	lo := loopback(b)
	d, err := Open(Options{Interface: lo.Name})
	testkit.OK(b, err)
	defer d.Close()
	c, h := pair(b, d)
	const size = 64 << 10
	recv, from := ends(c, h)
	go func() {
		buf := make([]byte, size)
		for {
			if _, err := from.Write(buf); err != nil {
				return
			}
		}
	}()
	linear := make([]byte, size)
	b.SetBytes(size)
	b.ReportAllocs()
	for b.Loop() {
		for got := 0; got < size; {
			n := testkit.Must(recv(linear[:size-got]))(b)
			got += n
		}
	}
	h.Close()
}
