package devmem

import (
	"fmt"
	"syscall"
	"time"
)

// ErrTooSmall is the kernel's internal errno 525, ETOOSMALL, which recvmsg lets through when no control message fits.
const ErrTooSmall = syscall.Errno(525)

// StallError is a connection that made no progress for the time set by SetStallLimit.
type StallError struct {
	Op    string
	Idle  time.Duration
	State string // the connection's own side: Conn.State
}

func (e *StallError) Error() string {
	return fmt.Sprintf("%s: no progress for %v: %s", e.Op, e.Idle, e.State)
}

// Timeout makes a StallError a net.Error.
func (e *StallError) Timeout() bool { return true }

// Temporary is false: the connection is to be given up.
func (e *StallError) Temporary() bool { return false }
