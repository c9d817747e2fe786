package transfer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"vnic.dev/vnic/devmem"
)

// Listen makes a receiver's Node listen on PrepareArgs.Local, until Finish.
func (n *Node) Listen(ctx context.Context) error {
	_, s, end, err := n.begin(ctx, "listen")
	if err != nil {
		return err
	}
	defer end()
	l, err := n.dev.Listen(s.conf.Local)
	if err != nil {
		return fmt.Errorf("listen on %v: %w", s.conf.Local, err)
	}
	n.mu.Lock()
	had := s.listener != nil
	if !had {
		s.listener = l
	}
	n.mu.Unlock()
	if had {
		_ = l.Close()
		return fmt.Errorf("listen on %v: listening already: %w", s.conf.Local, syscall.EALREADY)
	}
	return nil
}

// Connect connects a sender's Node from PrepareArgs.Local to the receiver at PrepareArgs.Remote.
func (n *Node) Connect(ctx context.Context) error {
	ctx, s, end, err := n.begin(ctx, "connect")
	if err != nil {
		return err
	}
	defer end()
	c, err := n.dev.Dial(ctx, s.conf.Local, s.conf.Remote)
	if err == nil {
		err = n.took(s, c)
	}
	if err != nil {
		return fmt.Errorf("connect %v to %v: %w", s.conf.Local, s.conf.Remote, because(ctx, err))
	}
	return nil
}

// Accept waits for the connection from PrepareArgs.Remote, and aborts others that come before it. If its context ends,
// it closes the listener.
func (n *Node) Accept(ctx context.Context) error {
	ctx, s, end, err := n.begin(ctx, "accept")
	if err != nil {
		return err
	}
	defer end()
	n.mu.Lock()
	l := s.listener
	n.mu.Unlock()
	if l == nil {
		return fmt.Errorf("accept: not listening: %w", syscall.EINVAL)
	}
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	for {
		c, err := l.AcceptConn()
		if err == nil && !isFrom(c, s.conf.Remote) {
			abort(c)
			continue
		}
		if err == nil {
			err = n.took(s, c)
		}
		if err != nil {
			return fmt.Errorf("accept on %v: %w", s.conf.Local, because(ctx, err))
		}
		return nil
	}
}

func isFrom(c devmem.Conn, a netip.AddrPort) bool {
	t, ok := c.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return false
	}
	got := t.AddrPort()
	return got.Port() == a.Port() && got.Addr().Unmap() == a.Addr().Unmap()
}

func (n *Node) took(s *session, c devmem.Conn) error {
	c.SetStallLimit(s.conf.stall())
	n.mu.Lock()
	had := s.conn != nil
	if !had {
		s.conn = c
	}
	n.mu.Unlock()
	if had {
		abort(c)
		return syscall.EISCONN
	}
	return nil
}

// State describes the TCP state of the current transfer's connection; "no connection" without one.
func (n *Node) State(context.Context) string {
	n.mu.Lock()
	var c devmem.Conn
	if n.now != nil {
		c = n.now.conn
	}
	n.mu.Unlock()
	if c == nil {
		return "no connection"
	}
	return c.State()
}

type mover func(ctx context.Context, p *pipe, s *session, r *Result) error

// Holders lists the device's connections with tokens that were not returned. errors.ErrUnsupported: the device cannot
// list them.
func (n *Node) Holders(context.Context) ([]devmem.Holder, error) {
	list, known := devmem.Holders(n.dev)
	if !known {
		return nil, errors.ErrUnsupported
	}
	return list, nil
}

// move implements Receive and Send: it calls byCopy in mode copy, else byReference.
func (n *Node) move(ctx context.Context, what string, send bool, byCopy, byReference mover) (r Result, err error) {
	ctx, s, end, err := n.begin(ctx, what)
	if err != nil {
		return r, err
	}
	defer end()
	if err := n.mayMove(s, send); err != nil {
		return r, fmt.Errorf("%s: %w", what, err)
	}
	var cost Cost
	err = n.measure(&cost, func() error {
		ctx, p := n.newPipe(ctx, s.conn)
		defer p.end()
		if s.conf.Mode == Copy {
			return because(ctx, byCopy(ctx, p, s, &r))
		}
		return because(ctx, byReference(ctx, p, s, &r))
	})
	r.Retransmits, r.CPU = cost.Retransmits, cost.CPU
	n.mu.Lock()
	defer n.mu.Unlock()
	s.whole = err == nil
	return r, err
}

func (n *Node) mayMove(s *session, send bool) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case s.conf.Send != send:
		return fmt.Errorf("prepared for the other end: %w", syscall.EINVAL)
	case s.conn == nil:
		return syscall.ENOTCONN
	case s.moved:
		return fmt.Errorf("once already: %w", syscall.EALREADY)
	}
	s.moved = true
	return nil
}
