package peer

import (
	"context"
	"log/slog"
)

// MaxRefusalLogs is how many refused requests of a connection are logged individually.
const MaxRefusalLogs = 16

// Refusals logs requests of a connection that failed without ending the connection.
type Refusals struct {
	Log      *slog.Logger
	Protocol string
	n        int
	repeated int
}

// Refused counts a failed request, and logs it if it is one of the first MaxRefusalLogs.
func (r *Refusals) Refused(level slog.Level, request string, attrs ...any) {
	if r.n++; r.n > MaxRefusalLogs {
		return
	}
	r.Log.Log(context.Background(), level, r.Protocol+" request refused", append([]any{"request", request}, attrs...)...)
}

// Repeated counts a failed request whose reason was already logged.
func (r *Refusals) Repeated() { r.repeated++ }

// End logs how many refusals were not logged, if any.
func (r *Refusals) End() {
	if n := max(r.n-MaxRefusalLogs, 0) + r.repeated; n > 0 {
		r.Log.Warn("more "+r.Protocol+" requests were refused than logged", "count", n)
	}
}
