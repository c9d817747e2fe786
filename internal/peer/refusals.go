package peer

import (
	"context"
	"log/slog"
)

// MaxRefusalLogs is how many refusals of a connection are logged one by one: a peer can ask for
// ever.
const MaxRefusalLogs = 16

// Refusals logs the requests of a connection that failed and did not end it.
type Refusals struct {
	Log      *slog.Logger
	Protocol string // its name, for the log
	n        int
	repeated int
}

// Refused logs a request: the first MaxRefusalLogs of them.
func (r *Refusals) Refused(level slog.Level, request string, attrs ...any) {
	if r.n++; r.n > MaxRefusalLogs {
		return
	}
	r.Log.Log(context.Background(), level, r.Protocol+" request refused", append([]any{"request", request}, attrs...)...)
}

// Repeated counts a request that failed for a reason that is logged already.
func (r *Refusals) Repeated() { r.repeated++ }

// End logs how many were not logged.
func (r *Refusals) End() {
	if n := max(r.n-MaxRefusalLogs, 0) + r.repeated; n > 0 {
		r.Log.Warn("more "+r.Protocol+" requests were refused than logged", "count", n)
	}
}
