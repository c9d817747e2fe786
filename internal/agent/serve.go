package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"vnic.dev/vnic/internal/limits"
)

// opPoweroff is answered by Serve itself, which then returns.
const opPoweroff = "poweroff"

// ErrBusy is the error for operations that kept running after they were cancelled.
var ErrBusy = errors.New("operations did not end")

// server is the state of one Serve.
type server struct {
	out     *lineWriter
	mu      sync.Mutex
	running map[uint64]context.CancelFunc // under mu, by request id
	wg      sync.WaitGroup
}

// Serve answers requests on rw until the host asks for power-off (nil), ctx ends, or rw fails. It
// returns once the operations have ended, or returns ErrBusy if some do not stop in time.
func Serve(ctx context.Context, rw io.ReadWriter, env Env) error {
	limits.Stretch(env.Config.Slow)
	ctx, cancel := context.WithCancel(context.WithValue(ctx, envKey, env))
	defer cancel()
	if d, ok := rw.(interface{ SetReadDeadline(time.Time) error }); ok {
		defer context.AfterFunc(ctx, func() { _ = d.SetReadDeadline(time.Unix(1, 0)) })()
	}
	s := &server{out: &lineWriter{w: rw}, running: map[uint64]context.CancelFunc{}}
	err := s.loop(ctx, newLineReader(rw))
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	cancel()
	done := make(chan struct{})
	go func() { s.wg.Wait(); close(done) }()
	t := time.NewTimer(limits.AgentStop.Here())
	defer t.Stop()
	select {
	case <-done:
		return err
	case <-t.C:
		return errors.Join(err, ErrBusy)
	}
}

func (s *server) loop(ctx context.Context, in *lineReader) error {
	for {
		m, err := in.next()
		switch {
		case err != nil:
			return fmt.Errorf("results channel: %w", err)
		case m.ID == 0:
		case m.Cancel:
			s.mu.Lock()
			if stop := s.running[m.ID]; stop != nil {
				stop()
			}
			s.mu.Unlock()
		case m.Op == opPoweroff:
			return s.reply(m.ID, nil, nil)
		default:
			s.start(ctx, m)
		}
	}
}

func (s *server) start(ctx context.Context, m *message) {
	op, ok := lookupOp(m.Op)
	if !ok {
		_ = s.reply(m.ID, nil, fmt.Errorf("no operation %q in this guest", m.Op))
		return
	}
	s.mu.Lock()
	if s.running[m.ID] != nil {
		s.mu.Unlock()
		_ = s.reply(m.ID, nil, fmt.Errorf("request %d is already running", m.ID))
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	s.running[m.ID] = cancel
	s.mu.Unlock()
	ctx = context.WithValue(ctx, progressKey, func(v any) error {
		p, err := raw(v)
		if err != nil {
			return err
		}
		return s.out.send(&message{ID: m.ID, Progress: p}, MaxLine)
	})
	s.wg.Go(func() {
		v, err := op(ctx, m.Args)
		cancel()
		s.mu.Lock()
		delete(s.running, m.ID)
		s.mu.Unlock()
		_ = s.reply(m.ID, v, err) // a write error also ends the loop
	})
}

func (s *server) reply(id uint64, v any, err error) error {
	m := &message{ID: id}
	if err == nil {
		m.OK, err = raw(v)
	}
	if err != nil {
		text := err.Error()
		m.OK, m.Error = nil, &text
	}
	err = s.out.send(m, MaxLine)
	if errors.Is(err, ErrLineTooLong) {
		text := err.Error()
		err = s.out.send(&message{ID: id, Error: &text}, MaxLine)
	}
	return err
}
