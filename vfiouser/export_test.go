package vfiouser

import (
	"time"

	"vnic.dev/vnic/internal/limits"
)

// SetDrainTimeout replaces drainTimeout; the returned function restores it.
func SetDrainTimeout(d time.Duration) (undo func()) {
	was := drainTimeout
	drainTimeout = limits.Limit(d)
	return func() { drainTimeout = was }
}
