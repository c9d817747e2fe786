package serve

import (
	"context"
	"log/slog"
	"sync"

	"golang.org/x/time/rate"
)

// quietBurst is how many lines about a port may come at once; after these, one a second.
const quietBurst = 100

// quiet limits the notes and warnings about each port: a peer can connect and hang up as often as it likes.
type quiet struct {
	mu    sync.Mutex
	ports map[string]*budget // by port; "": lines that are about no port
}

type budget struct {
	lines   *rate.Limiter
	leftOut int // lines that were dropped since the last written one
}

func newQuiet() *quiet { return &quiet{ports: map[string]*budget{}} }

// allow reports whether a line about a port may be written, and, if so, how many were dropped since the last one.
func (q *quiet) allow(port string) (leftOut int, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	b := q.ports[port]
	if b == nil {
		b = &budget{lines: rate.NewLimiter(1, quietBurst)}
		q.ports[port] = b
	}
	if !b.lines.Allow() {
		b.leftOut++
		return 0, false
	}
	leftOut, b.leftOut = b.leftOut, 0
	return leftOut, true
}

// note returns a function that calls its argument note, within the limit of each port. Before a line it notes how many
// lines about the port were left out, if any.
func (q *quiet) note(note func(port, format string, args ...any)) func(port, format string, args ...any) {
	return func(port, format string, args ...any) {
		leftOut, ok := q.allow(port)
		if !ok {
			return
		}
		if leftOut > 0 {
			note(port, "%d lines were left out", leftOut)
		}
		note(port, format, args...)
	}
}

type quietHandler struct {
	slog.Handler
	q    *quiet
	port string
}

func (h *quietHandler) Handle(ctx context.Context, r slog.Record) error {
	if r.Level >= slog.LevelWarn {
		leftOut, ok := h.q.allow(h.port)
		if !ok {
			return nil
		}
		if leftOut > 0 {
			r = r.Clone()
			r.AddAttrs(slog.Int("leftOut", leftOut))
		}
	}
	return h.Handler.Handle(ctx, r)
}

func (h *quietHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	to := quietHandler{h.Handler.WithAttrs(attrs), h.q, h.port}
	for _, a := range attrs {
		if a.Key == "port" {
			to.port = a.Value.String()
		}
	}
	return &to
}

func (h *quietHandler) WithGroup(name string) slog.Handler {
	return &quietHandler{h.Handler.WithGroup(name), h.q, h.port}
}
