package transfer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/limits"
)

var errFinished = fmt.Errorf("the transfer was finished: %w", syscall.ECANCELED)

// session is one transfer, from Prepare to the end of Finish.
type session struct {
	conf PrepareArgs

	// Set by Prepare; release frees and clears them when no operation runs.
	data, pool devmem.Buffer
	rx, tx     devmem.Binding
	flow       devmem.FlowID

	// Under Node.mu.
	listener devmem.Listener
	conn     devmem.Conn
	moved    bool // Receive or Send has begun
	whole    bool // Receive or Send has moved every byte
	running  map[*operation]struct{}
	ending   bool
	idle     chan struct{} // closed when ending is set and no operation runs
}

type operation struct{ cancel context.CancelCauseFunc }

// begin starts an operation of the current transfer, and returns a context for it, which Finish cancels. The caller
// calls end when the operation has ended, without mu. EINVAL: no transfer is prepared, or Finish has begun.
func (n *Node) begin(ctx context.Context, what string) (_ context.Context, s *session, end func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, nil, fmt.Errorf("%s: %w", what, err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.now == nil || n.now.ending {
		return nil, nil, nil, fmt.Errorf("%s: no transfer is prepared: %w", what, syscall.EINVAL)
	}
	ctx, end = n.enter(ctx, n.now)
	return ctx, n.now, end, nil
}

// enter is begin for a session. The caller holds mu.
func (n *Node) enter(ctx context.Context, s *session) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	op := &operation{cancel}
	s.running[op] = struct{}{}
	return ctx, func() {
		cancel(nil)
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(s.running, op)
		if s.ending && len(s.running) == 0 {
			close(s.idle)
		}
	}
}

// Finish ends the transfer: it cancels its running operations, waits for them until ctx ends, and closes the transfer's
// connection, listener, flow rule, bindings and buffers. Without a transfer it does nothing. After an error the next
// Finish tries again.
func (n *Node) Finish(ctx context.Context) error {
	n.mu.Lock()
	s := n.now
	n.mu.Unlock()
	return n.finish(ctx, s)
}

func (n *Node) finish(ctx context.Context, s *session) error {
	n.finishing.Lock()
	defer n.finishing.Unlock()
	n.mu.Lock()
	if s == nil || n.now != s { // nothing is prepared, or another call has finished s
		n.mu.Unlock()
		return nil
	}
	if !s.ending {
		s.ending = true
		for op := range s.running {
			op.cancel(errFinished)
		}
		if len(s.running) == 0 {
			close(s.idle)
		}
	}
	n.mu.Unlock()
	select {
	case <-s.idle:
	case <-ctx.Done():
		return fmt.Errorf("finish: operations are still running: %w", ctx.Err())
	}
	if err := n.release(ctx, s); err != nil {
		return fmt.Errorf("finish: %w", err)
	}
	n.mu.Lock()
	n.now = nil
	n.mu.Unlock()
	return nil
}

// release closes what a session holds, and goes on after an error. The caller makes sure that no operation runs.
func (n *Node) release(ctx context.Context, s *session) error {
	var errs []error
	done := func(what string, err error) bool {
		// With these errors the object is gone already, perhaps with the device.
		if err == nil || errors.Is(err, net.ErrClosed) || errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ENODEV) {
			return true
		}
		errs = append(errs, fmt.Errorf("%s: %w", what, err))
		return false
	}
	n.mu.Lock()
	conn, listener, whole := s.conn, s.listener, s.whole
	s.conn, s.listener = nil, nil
	n.mu.Unlock()
	if conn != nil {
		if !whole {
			conn.SetLinger(0)
		}
		done("close connection", conn.Close())
	}
	if listener != nil {
		done("close listener", listener.Close())
	}
	if s.flow != 0 && done("flow rule", n.dev.DelFlow(s.flow)) {
		s.flow = 0
	}
	for _, b := range []*devmem.Binding{&s.rx, &s.tx} {
		if *b != nil && done("unbind", unbind(ctx, *b)) {
			*b = nil
		}
	}
	for _, b := range []*devmem.Buffer{&s.pool, &s.data} {
		if *b != nil && done("close buffer", (*b).Close()) {
			*b = nil
		}
	}
	return errors.Join(errs...)
}

// unbind closes a binding and waits, until ctx ends and at most limits.Unbind.Here(), until its memory is unused: only
// then may its buffer be freed.
func unbind(ctx context.Context, b devmem.Binding) error {
	if err := b.Close(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, limits.Unbind.Here())
	defer cancel()
	select {
	case <-b.Done():
		return nil
	case <-ctx.Done():
		return fmt.Errorf("binding %d: memory still in use: %w", b.ID(), ctx.Err())
	}
}

// abort resets a connection: after an ordinary close, TCP would go on sending unacknowledged data, and the data's
// memory would stay in use.
func abort(c devmem.Conn) {
	_ = c.SetLinger(0) // an error means that c is closed
	_ = c.Close()
}
