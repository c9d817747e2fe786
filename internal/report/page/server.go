package page

import (
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"vnic.dev/vnic/internal/httpserver"
	"vnic.dev/vnic/internal/limits"
)

const (
	maxConns = 64
	maxPages = 32 // most connections that receive events
)

const flagName = "--http"

// CheckAddr returns an error if a user's address for the page is invalid; "" is valid: no address.
func CheckAddr(addr string) error { return httpserver.CheckAddr(flagName, addr, "localhost:8080") }

// Server is an HTTP server of the page.
type Server struct {
	recorder *Recorder
	http     *httpserver.Server
	patience time.Duration
	pages    chan struct{} // an element for each connection that receives events
	ending   chan struct{} // closed by Close
}

// Serve serves the page with the counters that r records, at an address, until Close. log may be nil.
func Serve(addr string, r *Recorder, log *slog.Logger) (*Server, error) {
	return serve(addr, r, log, limits.LocalClient.Here())
}

func serve(addr string, r *Recorder, log *slog.Logger, patience time.Duration) (s *Server, err error) {
	if err := CheckAddr(addr); err != nil {
		return nil, err
	}
	s = &Server{recorder: r, patience: patience, pages: make(chan struct{}, maxPages), ending: make(chan struct{})}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", s.page)
	mux.HandleFunc("GET /state.json", s.state)
	mux.HandleFunc("GET /events", s.events)
	s.http, err = httpserver.Serve(httpserver.Options{Addr: addr, Flag: flagName, Conns: maxConns, Log: log,
		Patience: patience, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Security-Policy", assemble().policy)
			mux.ServeHTTP(w, r)
		})})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// URL returns the URL of the page.
func (s *Server) URL() string { return s.http.URL() }

// Close sends open pages a last state and the event "end", and ends the server. It waits for pages up to
// limits.PageEnd. It may be called again.
func (s *Server) Close() {
	if s.http.End() {
		close(s.ending)
	}
	s.http.Close(limits.PageEnd.Here())
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

// events sends the history and then states, as server-sent events (HTML, 9.2), and "end" if the server ends before the
// client.
func (s *Server) events(w http.ResponseWriter, r *http.Request) {
	select {
	case s.pages <- struct{}{}:
		defer func() { <-s.pages }()
	default:
		http.Error(w, fmt.Sprintf("vnic: %d pages are open: close one", maxPages), http.StatusServiceUnavailable)
		return
	}
	defer s.recorder.Watch()()
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
		select {
		case <-next:
		case <-s.ending:
			b, _ = s.recorder.State()
			if send("state", b) == nil {
				_ = send("end", []byte("{}"))
			}
			return
		case <-r.Context().Done():
			return
		}
	}
}
