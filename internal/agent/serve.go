package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"vnic.dev/vnic/internal/jsonlines"
	"vnic.dev/vnic/internal/limits"
)

// protocol is the version of the messages on the results channel, operations included. A peer whose first message has
// no version counts as one of another version.
const protocol = 2

const (
	// MaxLine bounds a line in either direction, in bytes with its newline. maxRequest bounds a line from the host: the
	// guest's tty drops bytes if too many are unread.
	MaxLine    = 1 << 20
	maxRequest = 32 << 10
	maxRunning = 1 << 10 // bounds the operations that run in a guest at a time
)

const opPoweroff = "poweroff"

// ErrBusy means that operations still ran limits.AgentStop after [Serve] had cancelled them.
var ErrBusy = errors.New("operations did not end")

type server struct {
	out     *jsonlines.Writer
	mu      sync.Mutex
	running map[uint64]context.CancelFunc // under mu; cancels a running operation, by its request's id
	wg      sync.WaitGroup
}

// Serve answers requests on rw until the host asks for power-off, ctx ends, or rw ends or fails; then it cancels the
// operations. After a power-off that it could answer, Serve returns nil; after the end of ctx, ctx's error. If some
// operations do not end in time, the error wraps ErrBusy. If rw has no SetReadDeadline, the end of ctx does not end a
// read.
func Serve(ctx context.Context, rw io.ReadWriter, env Env) error {
	limits.Stretch(env.Config.Slow)
	ctx, cancel := context.WithCancel(context.WithValue(ctx, envKey, env))
	defer cancel()
	if d, ok := rw.(interface{ SetReadDeadline(time.Time) error }); ok {
		defer context.AfterFunc(ctx, func() { _ = d.SetReadDeadline(time.Unix(1, 0)) })()
	}
	s := &server{out: jsonlines.NewWriter(rw, protocol, MaxLine), running: map[uint64]context.CancelFunc{}}
	err := s.loop(ctx, jsonlines.NewReader(rw, jsonlines.Protocol{Version: protocol, MaxLine: MaxLine,
		Who: "the host", Fix: "build the guest's image with the host's vnic"}))
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	cancel()
	done := make(chan struct{})
	go func() { s.wg.Wait(); close(done) }()
	select {
	case <-done:
		return err
	case <-time.After(limits.AgentStop.Here()):
		return errors.Join(err, ErrBusy)
	}
}

func (s *server) loop(ctx context.Context, in *jsonlines.Reader) error {
	for {
		m, err := in.Next()
		switch {
		case errors.Is(err, jsonlines.ErrTooLong), errors.Is(err, jsonlines.ErrNoMessage):
		case m == nil:
			return fmt.Errorf("results channel: %w", err)
		case m.ID == 0:
		case m.Cancel:
			s.mu.Lock()
			if stop := s.running[m.ID]; stop != nil {
				stop()
			}
			s.mu.Unlock()
		case m.Op == opPoweroff:
			return s.out.Answer(m.ID, nil, nil)
		case err != nil:
			_ = s.out.Answer(m.ID, nil, err)
		default:
			s.start(ctx, m)
		}
	}
}

func (s *server) start(ctx context.Context, m *jsonlines.Message) {
	op, ok := lookupOp(m.Op)
	ctx, cancel := context.WithCancel(ctx)
	var err error
	s.mu.Lock()
	switch {
	case !ok:
		err = fmt.Errorf("no operation %q in this guest", m.Op)
	case s.running[m.ID] != nil:
		err = fmt.Errorf("request %d is already running", m.ID)
	case len(s.running) == maxRunning:
		err = fmt.Errorf("%d requests are already running", maxRunning)
	default:
		s.running[m.ID] = cancel
	}
	s.mu.Unlock()
	if err != nil {
		cancel()
		_ = s.out.Answer(m.ID, nil, err)
		return
	}
	ctx = context.WithValue(ctx, progressKey, func(v any) error {
		p, err := json.Marshal(v)
		if err != nil {
			return err
		}
		return s.out.Send(&jsonlines.Message{ID: m.ID, Progress: p})
	})
	s.wg.Go(func() {
		v, err := op(ctx, m.Args)
		cancel()
		s.mu.Lock()
		delete(s.running, m.ID)
		s.mu.Unlock()
		_ = s.out.Answer(m.ID, v, err)
	})
}

// WriteEvent writes an event, for the guest's init, as a line to w; data becomes its args, unless it is nil. A newline
// comes first, as the agent may have died within a line.
func WriteEvent(w io.Writer, event string, data any) error {
	m := &jsonlines.Message{Event: event}
	var err error
	if data != nil {
		m.Args, err = json.Marshal(data)
	}
	if err != nil {
		return fmt.Errorf("event %s: %w", event, err)
	}
	out := jsonlines.NewWriter(w, protocol, MaxLine)
	out.Resume()
	return out.Send(m)
}
