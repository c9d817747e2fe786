package httpserver

import (
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// serving starts a server with short time limits for clients.
func serving(t *testing.T, addr string) *Server {
	t.Helper()
	s := testkit.Must(Serve(Options{Addr: addr, Flag: "--x", Conns: 2, Patience: 50 * time.Millisecond,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "fine") })}))(t)
	t.Cleanup(func() { s.Close(0) })
	return s
}

// localhost means both loopback addresses at one port, or on a machine without IPv6 127.0.0.1; listening fails if
// one of them is in use.
func TestLocalhostIsBothLoopbacks(t *testing.T) {
	testkit.LeavesNothing(t)
	s := serving(t, "localhost:0")
	_, port, err := net.SplitHostPort(s.Addr())
	testkit.OK(t, err)
	for _, host := range []string{"127.0.0.1", "::1"} {
		addr := net.JoinHostPort(host, port)
		if c, err := net.Dial("tcp", addr); err == nil {
			testkit.OK(t, c.Close())
		} else if !errors.Is(err, unix.EADDRNOTAVAIL) {
			t.Errorf("%s: %v", addr, err)
		}
		if _, err := listen(addr); err == nil {
			t.Errorf("%s is free", addr)
		}
	}
	testkit.ErrorIs(t, testkit.Err(listen("localhost:"+port)), unix.EADDRINUSE, "both are taken")
	s.Close(0)
	six, err := net.Listen("tcp", "[::1]:"+port)
	if err != nil {
		return
	}
	defer six.Close()
	testkit.ErrorIs(t, testkit.Err(listen("localhost:"+port)), unix.EADDRINUSE, "::1 is taken")
}

func TestIdleConnectionsAreClosed(t *testing.T) {
	testkit.LeavesNothing(t)
	s := serving(t, "127.0.0.1:0")
	for _, request := range []string{"", "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "GET / HTTP/1.1\r\nHost: loc"} {
		c := testkit.Must(net.Dial("tcp", s.Addr()))(t)
		testkit.OK(t, testkit.Err(io.WriteString(c, request)))
		answer := string(testkit.Must(io.ReadAll(c))(t))
		if strings.HasSuffix(request, "\r\n\r\n") != strings.HasSuffix(answer, "\r\n\r\nfine") {
			t.Errorf("%q: %q", request, answer)
		}
		testkit.OK(t, c.Close())
	}
	testkit.Eventually(t, "all to be closed", func() bool { return s.Conns() == 0 })
}

func TestNamesOfAServer(t *testing.T) {
	named := Server{host: "lab.example"}
	for header, want := range map[string]bool{"lab.example:80": true, "lab.example": true, "": false, "localhost": true,
		"[::1]:8080": true, "[::1]": true, "::1": true, "192.0.2.7:1": true, "[localhost]": true, "other.example": false,
		"lab.example.": true, "LAB.example:80": true, "LocalHost.": true, ":80": false, ".": false} {
		testkit.Equal(t, header, named.accepts(header), want)
	}
	host := testkit.Must(os.Hostname())(t)
	testkit.Equal(t, "this machine's name", (&Server{anywhere: true}).accepts(host+":80"), true)
	testkit.Equal(t, "its name where it is one address of many", named.accepts(host),
		host == named.host || host == "localhost")
	testkit.Equal(t, "a server without a name", (&Server{}).accepts(""), false)
}

// A request of HTTP/1.0 without a Host header, as of some health checks, is answered; one of HTTP/1.1 is refused.
func TestRequestsWithoutHost(t *testing.T) {
	testkit.LeavesNothing(t)
	s := serving(t, "127.0.0.1:0")
	for request, want := range map[string]string{"GET / HTTP/1.0\r\n\r\n": "HTTP/1.0 200 OK",
		"GET / HTTP/1.0\r\nHost: evil.example\r\n\r\n": "HTTP/1.0 421 ", "GET / HTTP/1.1\r\n\r\n": "HTTP/1.1 400 ",
		"GET / HTTP/1.1\r\nHost:\r\n\r\n": "HTTP/1.1 421 "} {
		c := testkit.Must(net.Dial("tcp", s.Addr()))(t)
		testkit.OK(t, testkit.Err(io.WriteString(c, request)))
		if answer := string(testkit.Must(io.ReadAll(c))(t)); !strings.HasPrefix(answer, want) {
			t.Errorf("%q: %q, want %q", request, answer, want)
		}
		testkit.OK(t, c.Close())
	}
}

func TestAddressesOfServers(t *testing.T) {
	for addr, want := range map[string]string{"9118": "--x 9118: not HOST:PORT, as localhost:1",
		"localhost:70000": "HOST:PORT", "::1:9118": "HOST:PORT", "localhost:http2": "HOST:PORT"} {
		testkit.ErrorSays(t, CheckAddr("--x", addr, "localhost:1"), want)
	}
	testkit.OK(t, errors.Join(CheckAddr("--x", "", ""), CheckAddr("--x", "[::1]:0", "")))
	s := serving(t, "127.0.0.1:0")
	testkit.ErrorSays(t, testkit.Err(Serve(Options{Addr: s.Addr(), Flag: "--x"})), "--x "+s.Addr(), "give another address")
}
