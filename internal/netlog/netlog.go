// Package netlog sends the log messages of gVisor (netstack) to slog.
package netlog

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/log"
)

// Quiet makes gVisor's logger use slog's default logger at level Debug.
var Quiet = sync.OnceFunc(func() { log.SetTarget(emitter{}) })

type emitter struct{}

func (emitter) Emit(_ int, level log.Level, _ time.Time, format string, v ...any) {
	if slog.Default().Enabled(context.Background(), slog.LevelDebug) {
		slog.Debug("netstack", "level", level, "msg", fmt.Sprintf(format, v...))
	}
}
