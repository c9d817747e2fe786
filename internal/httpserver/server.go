package httpserver

import (
	"cmp"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"vnic.dev/vnic/internal/limits"
)

// Options are the options of Serve.
type Options struct {
	Addr    string // HOST:PORT; localhost is 127.0.0.1 and, with IPv6, ::1
	Flag    string // the command line flag that sets Addr, for errors
	Handler http.Handler
	Conns   int          // maximum number of connections
	Log     *slog.Logger // nil: none

	// Patience bounds the time to receive a request. Without Long it also bounds the idle time of a connection, and
	// an answer may take twice as long. 0: limits.LocalClient times limits.Slow.
	Patience time.Duration
	// Long removes the time limit of answers, and lets connections be idle for limits.Peer times
	// limits.Slow.
	Long bool
}

const maxHeader = 16 << 10

// Server is an HTTP server.
type Server struct {
	host     string // the host of Options.Addr
	anywhere bool
	flag     string
	addr     string
	http     http.Server
	most     int
	wg       sync.WaitGroup
	inside   sync.WaitGroup // requests in the handler

	mu    sync.Mutex
	conns map[net.Conn]bool
	ended bool
}

// CheckAddr returns an error if addr, the value of a flag, is not HOST:PORT; "" is valid. The error shows
// example.
func CheckAddr(flag, addr, example string) error {
	if addr == "" {
		return nil
	}
	_, port, err := net.SplitHostPort(addr)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		return fmt.Errorf("%s %s: not HOST:PORT, as %s", flag, addr, example)
	}
	return nil
}

// Serve starts a Server. The caller closes it.
func Serve(o Options) (*Server, error) {
	list, err := listen(o.Addr)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w: give another address", o.Flag, o.Addr, err)
	}
	log, patience := cmp.Or(o.Log, slog.New(slog.DiscardHandler)), cmp.Or(o.Patience, limits.LocalClient.Here())
	s := &Server{flag: o.Flag, addr: list[0].Addr().String(), most: o.Conns, conns: map[net.Conn]bool{}}
	s.host, _, _ = net.SplitHostPort(o.Addr)
	if a, ok := list[0].Addr().(*net.TCPAddr); ok {
		s.anywhere = a.IP.IsUnspecified()
	}
	s.http = http.Server{
		Handler: s.enter(s.guard(o.Handler)), ReadTimeout: patience, WriteTimeout: 2 * patience,
		IdleTimeout: patience, MaxHeaderBytes: maxHeader, ConnState: s.connState,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	if o.Long {
		s.http.WriteTimeout, s.http.IdleTimeout = 0, limits.Peer.Here()
	}
	for _, l := range list {
		s.wg.Go(func() { _ = s.http.Serve(l) })
	}
	return s, nil
}

// URL returns the server's URL, with the address and port of its first listener.
func (s *Server) URL() string { return "http://" + s.addr + "/" }

// Addr returns the address and port of the server's first listener.
func (s *Server) Addr() string { return s.addr }

// Conns returns the number of open connections.
func (s *Server) Conns() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns)
}

// End makes the server pass no further requests to the handler. first is false if End or Close had been
// called before.
func (s *Server) End() (first bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	first = !s.ended
	s.ended = true
	return first
}

// Close ends the server (End). It waits at most patience for the requests in the handler, then closes the listeners
// and connections, and waits without a limit until the handler has returned.
func (s *Server) Close(patience time.Duration) {
	s.End()
	gone := make(chan struct{})
	s.wg.Go(func() { s.inside.Wait(); close(gone) })
	select {
	case <-gone:
	case <-time.After(patience):
	}
	_ = s.http.Close()
	s.wg.Wait()
}

// enter passes requests to next until End. It counts the requests in next, because http.Server.Close does not wait for
// them.
func (s *Server) enter(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		ended := s.ended
		if !ended {
			s.inside.Add(1)
		}
		s.mu.Unlock()
		if !ended {
			defer s.inside.Done()
			next.ServeHTTP(w, r)
		}
	})
}

func (s *Server) connState(c net.Conn, state http.ConnState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch state {
	case http.StateNew:
		if len(s.conns) >= s.most {
			_ = c.Close()
			return
		}
		s.conns[c] = true
	case http.StateClosed, http.StateHijacked:
		delete(s.conns, c)
	}
}

// guard refuses requests whose Host header is not this server's (accepts), against DNS rebinding. A request of
// HTTP/1.0 without that header passes: browsers always send it (RFC 9112, 3.2), but health checks may not.
func (s *Server) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		if !s.accepts(r.Host) && (r.Host != "" || r.ProtoAtLeast(1, 1)) {
			http.Error(w, fmt.Sprintf("vnic: %q is no name of this server: open %s, or give vnic that name by %s", r.Host,
				s.URL(), s.flag), http.StatusMisdirectedRequest)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// accepts reports whether a Host header has an IP address, localhost, the host of Options.Addr, or, if the server
// listens at all addresses, the machine's name.
func (s *Server) accepts(header string) bool {
	host, _, err := net.SplitHostPort(header)
	if err != nil {
		host = header
	}
	if n := len(host); n > 1 && host[0] == '[' && host[n-1] == ']' {
		host = host[1 : n-1]
	}
	if _, err = netip.ParseAddr(host); err == nil {
		return true
	}
	if name, err := os.Hostname(); err == nil && s.anywhere && strings.EqualFold(host, name) {
		return true
	}
	host = strings.TrimSuffix(host, ".") // RFC 3986, 3.2.2
	return strings.EqualFold(host, "localhost") || host != "" && strings.EqualFold(host, strings.TrimSuffix(s.host, "."))
}
