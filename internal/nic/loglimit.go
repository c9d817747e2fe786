package nic

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// LogLimit logs at most one line a second. If it has suppressed lines since the previous one, the line has their number
// (heldBack). Any goroutine may use a LogLimit.
type LogLimit struct {
	mu   sync.Mutex
	next time.Time
	held int
}

// Log passes msg to log, unless l passed on a message less than a second before.
func (l *LogLimit) Log(log *slog.Logger, level slog.Level, msg string, attrs ...any) {
	held, ok := l.allow(time.Now())
	if !ok {
		return
	}
	if held > 0 {
		attrs = append(attrs, "heldBack", held)
	}
	log.Log(context.Background(), level, msg, attrs...)
}

func (l *LogLimit) allow(now time.Time) (held int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Before(l.next) {
		l.held++
		return 0, false
	}
	held, l.held, l.next = l.held, 0, now.Add(time.Second)
	return held, true
}
