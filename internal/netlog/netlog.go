// Package netlog says where what netstack logs goes.
package netlog

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/log"
)

// Quiet sends what netstack logs, through a logger of its own that all of a process has, to slog's default at level
// Debug: nearly all of it is about what a peer sent.
var Quiet = sync.OnceFunc(func() { log.SetTarget(emitter{}) })

type emitter struct{}

func (emitter) Emit(_ int, level log.Level, _ time.Time, format string, v ...any) {
	if slog.Default().Enabled(context.Background(), slog.LevelDebug) {
		slog.Debug("netstack", "level", level, "msg", fmt.Sprintf(format, v...))
	}
}
