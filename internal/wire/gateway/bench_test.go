package gateway

import (
	"io"
	"net"
	"testing"

	"vnic.dev/vnic/internal/testkit"
)

// BenchmarkToHost measures the throughput of a TCP connection from a guest's netstack through the gateway to a socket
// of the host, and of one on the host's loopback.
func BenchmarkToHost(b *testing.B) {
	const chunk = 1 << 20
	sink := func(b *testing.B) net.Listener {
		l, _ := listenTCP(b)
		serveTCP(b, l, func(c net.Conn) { _, _ = io.Copy(struct{ io.Writer }{io.Discard}, c) })
		return l
	}
	run := func(b *testing.B, c halfCloser) {
		data := noise(chunk, 1)
		b.SetBytes(chunk)
		for b.Loop() {
			if _, err := c.Write(data); err != nil {
				b.Fatal(err)
			}
		}
		testkit.OK(b, c.CloseWrite())
		if _, err := c.Read(data); err != io.EOF {
			b.Fatal(err)
		}
	}
	b.Run("gateway", func(b *testing.B) {
		c := newRig(b, nil).guest(1).mustDial(own4(sink(b).Addr().(*net.TCPAddr).AddrPort().Port()))
		defer c.Close()
		run(b, c)
	})
	b.Run("loopback", func(b *testing.B) {
		c := testkit.Must(net.Dial("tcp4", sink(b).Addr().String()))(b)
		defer c.Close()
		run(b, c.(*net.TCPConn))
	})
}
