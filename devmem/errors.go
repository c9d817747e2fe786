package devmem

import (
	"context"
	"fmt"
	"syscall"
	"time"
)

// ErrTooSmall is the kernel's internal errno 525, ETOOSMALL, which recvmsg lets through when no control message fits.
const ErrTooSmall = syscall.Errno(525)

// StallError is a connection that made no progress for the time set by SetStallLimit.
type StallError struct {
	Op   string
	Idle time.Duration
	// Diagnosis names the likely mistake, in words for people: tokens that were not returned, a rule that is missing, a
	// peer that is gone. "": none is known.
	Diagnosis string
	State     string // the connection's own side: Conn.State
}

func (e *StallError) Error() string {
	if e.Diagnosis != "" {
		return fmt.Sprintf("%s: no progress for %v: %s; %s", e.Op, e.Idle, e.Diagnosis, e.State)
	}
	return fmt.Sprintf("%s: no progress for %v: %s", e.Op, e.Idle, e.State)
}

// Timeout makes a StallError a net.Error.
func (e *StallError) Timeout() bool { return true }

// Temporary is false: the connection is to be given up.
func (e *StallError) Temporary() bool { return false }

// Accept is l's AcceptConn until ctx ends: then it closes l, and says that nobody came.
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

// Diagnose says why the payload of a connection comes in host memory although its user wants it in device memory: no
// flow rule, a rule to a queue without a binding. It is for programs that RecvDevmem gave bytes without fragments. "":
// the implementation does not know.
func Diagnose(c Conn) string {
	if d, ok := c.(interface{ Diagnose() string }); ok {
		return d.Diagnose()
	}
	return ""
}
