package devmem

import (
	"context"
	"fmt"
	"syscall"
	"time"
)

// ErrTooSmall is the kernel's errno 525, ETOOSMALL. RecvDevmem returns it if it has no room for even one frag.
const ErrTooSmall = syscall.Errno(525)

// StallError is the error of a call that waited while its connection made no progress for the time of SetStallLimit.
type StallError struct {
	Op   string
	Idle time.Duration
	// Diagnosis is a sentence about the likely cause, for people; it may be empty.
	Diagnosis string
	State     string // Conn.State at the error
}

func (e *StallError) Error() string {
	if e.Diagnosis != "" {
		return fmt.Sprintf("%s: no progress for %v: %s; %s", e.Op, e.Idle, e.Diagnosis, e.State)
	}
	return fmt.Sprintf("%s: no progress for %v: %s", e.Op, e.Idle, e.State)
}

// Timeout returns true.
func (e *StallError) Timeout() bool { return true }

// Temporary returns false.
func (e *StallError) Temporary() bool { return false }

// Accept calls l.AcceptConn. If ctx ends first, it closes l, and returns an error that
// wraps ctx's cause.
func Accept(ctx context.Context, l Listener) (Conn, error) {
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	c, err := l.AcceptConn()
	if err != nil && ctx.Err() != nil {
		return nil, fmt.Errorf("accept: nobody has connected to %v: is the sender started, and is this its address? %w",
			l.Addr(), context.Cause(ctx))
	}
	return c, err
}

// Diagnose explains why payload of c arrives in host memory, such as for lack of a flow rule. It returns "" if it
// finds no reason, or if c's implementation has no diagnosis.
func Diagnose(c Conn) string {
	if d, ok := c.(interface{ Diagnose() string }); ok {
		return d.Diagnose()
	}
	return ""
}
