package peer

import (
	"context"
	"log/slog"
)

// MaxRefusalLogs is how many refusals of a connection are logged individually: a peer can send
// requests forever.
const MaxRefusalLogs = 16

// Refusals logs a connection's requests that failed without ending it.
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

// Repeated counts a request that failed for a reason that was already logged.
func (r *Refusals) Repeated() { r.repeated++ }

// End logs how many refusals were not logged.
func (r *Refusals) End() {
	if n := max(r.n-MaxRefusalLogs, 0) + r.repeated; n > 0 {
		r.Log.Warn("more "+r.Protocol+" requests were refused than logged", "count", n)
	}
}
