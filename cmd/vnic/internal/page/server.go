package page

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"vnic.dev/vnic/cmd/vnic/internal/stat"
	"vnic.dev/vnic/internal/limits"
)

// Bounds of what clients can make a server hold.
const (
	maxConns = 64
	maxPages = 32 // that listen to events
)

// CheckAddr says what is wrong with an address, as a user gave it; "" is none.
func CheckAddr(addr string) error {
	if addr == "" {
		return nil
	}
	_, port, err := net.SplitHostPort(addr)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		return fmt.Errorf("--http %s: not HOST:PORT, as localhost:8080", addr)
	}
	return nil
}

// Server is an HTTP server of the page. A client has seconds for its request, and headers of 16 KiB.
type Server struct {
	recorder *Recorder
	host     string // that the user gave
	url      string
	http     http.Server
	patience time.Duration // limits.LocalClient, but for tests
	ending   chan struct{} // is closed when pages are to be told that it ends
	wg       sync.WaitGroup
	requests stat.Requests

	mu    sync.Mutex // guards what follows
	conns map[net.Conn]bool
	pages int
}

// Serve serves what r records at an address, until Close. localhost is 127.0.0.1 and ::1. log may be nil.
func Serve(addr string, r *Recorder, log *slog.Logger) (*Server, error) {
	return serve(addr, r, log, limits.LocalClient.Here())
}

func serve(addr string, r *Recorder, log *slog.Logger, patience time.Duration) (*Server, error) {
	if err := CheckAddr(addr); err != nil {
		return nil, err
	}
	list, err := stat.Listen(addr)
	if err != nil {
		return nil, fmt.Errorf("--http %s: %w: give another address", addr, err)
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	s := &Server{recorder: r, patience: patience, ending: make(chan struct{}), conns: map[net.Conn]bool{}}
	s.host, _, _ = net.SplitHostPort(addr) // it has been checked
	s.url = fmt.Sprintf("http://%s/", list[0].Addr())
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", s.page)
	mux.HandleFunc("GET /state.json", s.state)
	mux.HandleFunc("GET /events", s.events)
	s.http = http.Server{
		Handler: s.requests.Handler(s.guard(mux)), ReadTimeout: patience, WriteTimeout: 2 * patience,
		IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10, ConnState: s.connState,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	for _, l := range list {
		s.wg.Go(func() { _ = s.http.Serve(l) }) // ErrServerClosed
	}
	return s, nil
}

// URL is where the page is.
func (s *Server) URL() string { return s.url }

// Close tells pages that it ends, and leaves nothing of itself. It takes half a second at most. It may be called again.
func (s *Server) Close() {
	if s.requests.End() {
		close(s.ending)
	}
	gone := make(chan struct{})
	s.wg.Go(func() { s.requests.Wait(); close(gone) })
	select {
	case <-gone:
	case <-time.After(limits.PageEnd.Here()):
	}
	_ = s.http.Close()
	s.wg.Wait()
}

// connState bounds the number of connections.
func (s *Server) connState(c net.Conn, state http.ConnState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch state {
	case http.StateNew:
		if len(s.conns) >= maxConns {
			_ = c.Close()
			return
		}
		s.conns[c] = true
	case http.StateClosed, http.StateHijacked:
		delete(s.conns, c)
	}
}

// guard refuses what a page of another name asks for (DNS rebinding).
func (s *Server) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", assemble().policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		if !s.knows(r.Host) {
			http.Error(w, fmt.Sprintf("vnic: %q is no name of this page: open %s", r.Host, s.url), http.StatusMisdirectedRequest)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// knows says whether a Host header names this server: by an address, as localhost, or as the user did.
func (s *Server) knows(header string) bool {
	host, _, err := net.SplitHostPort(header)
	if err != nil {
		host = header
	}
	if n := len(host); n > 1 && host[0] == '[' && host[n-1] == ']' {
		host = host[1 : n-1]
	}
	_, err = netip.ParseAddr(host)
	return err == nil || host == "localhost" || host != "" && host == s.host
}

func (s *Server) page(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = w.Write(html(nil))
}

func (s *Server) state(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	b, _ := s.recorder.State()
	_, _ = w.Write(b)
}

var errEnding = errors.New("the server ends")

// events sends what has been, then a state a second: server-sent events (HTML, 9.2). The last one is "end".
func (s *Server) events(w http.ResponseWriter, r *http.Request) {
	if !s.enter() {
		http.Error(w, fmt.Sprintf("vnic: %d pages are open: close one", maxPages), http.StatusServiceUnavailable)
		return
	}
	defer s.leave()
	w.Header().Set("Content-Type", "text/event-stream")
	c := http.NewResponseController(w)
	_ = c.SetReadDeadline(time.Time{}) // ReadTimeout was for the request
	send := func(event string, data []byte) error {
		if err := c.SetWriteDeadline(time.Now().Add(s.patience)); err != nil {
			return err
		}
		if _, err := fmt.Fprintf(w, "event: %s\ndata: %s\n\n", event, data); err != nil {
			return err
		}
		return c.Flush()
	}
	if err := send("history", s.recorder.History()); err != nil {
		return
	}
	for {
		b, next := s.recorder.State()
		if err := send("state", b); err != nil {
			return
		}
		switch err := s.wait(r, next); {
		case errors.Is(err, errEnding):
			b, _ = s.recorder.State()
			if send("state", b) == nil {
				_ = send("end", []byte("{}"))
			}
			return
		case err != nil:
			return
		}
	}
}

// wait waits for another state.
func (s *Server) wait(r *http.Request, next <-chan struct{}) error {
	select {
	case <-next:
		return nil
	case <-s.ending:
		return errEnding
	case <-r.Context().Done():
		return io.EOF
	}
}

func (s *Server) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pages == maxPages {
		return false
	}
	s.pages++
	return true
}

func (s *Server) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pages--
}
