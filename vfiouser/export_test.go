package vfiouser

import (
	"time"

	"vnic.dev/vnic/internal/limits"
)

// SetDrainTimeout sets how long the end of Serve waits to send answers, and returns a function that
// restores it.
func SetDrainTimeout(d time.Duration) (undo func()) {
	was := drainTimeout
	drainTimeout = limits.Limit(d)
	return func() { drainTimeout = was }
}
