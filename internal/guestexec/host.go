package guestexec

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"vnic.dev/vnic/internal/agent"
)

var next atomic.Uint64

type host struct {
	client  *agent.Client
	id      uint64
	cmd     *Command
	started chan struct{}
	streams map[int]*sink
	fail    context.CancelCauseFunc
}

// Run runs a program in the guest, and returns after it has ended and the output that the guest has sent is written.
// If ctx ends or the output fails (a Write, [ErrFlood]), the program is killed and Run returns the cause; then a
// blocked Write may still be running.
func Run(ctx context.Context, c *agent.Client, cmd Command) (Status, error) {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	h := &host{client: c, id: next.Add(1), cmd: &cmd, started: make(chan struct{}), fail: fail,
		streams: map[int]*sink{stdout: newSink(cmd.Stdout), stderr: newSink(cmd.Stderr)}}
	var writers, feeders sync.WaitGroup
	for n, s := range h.streams {
		writers.Go(func() { h.write(ctx, n, s) })
	}
	feeding, stop := context.WithCancel(ctx)
	feeders.Go(func() { h.feed(feeding) })
	feeders.Go(func() { h.resize(feeding) })
	a := runArgs{ID: h.id, Path: cmd.Path, Args: cmd.Args, Env: cmd.Env, Dir: cmd.Dir, TTY: cmd.TTY, Size: cmd.Size}
	status, err := opRun.CallProgress(ctx, c, a, h.progress)
	for _, s := range h.streams {
		s.end()
	}
	stop()
	if in, ok := cmd.Stdin.(io.Closer); ok {
		_ = in.Close()
	}
	feeders.Wait()
	written := make(chan struct{})
	go func() {
		writers.Wait()
		close(written)
	}()
	select {
	case <-written:
	case <-ctx.Done():
	}
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	return status, err
}

// progress must not wait: it runs on the goroutine that reads the results channel.
func (h *host) progress(raw json.RawMessage) {
	var r report
	if err := json.Unmarshal(raw, &r); err != nil {
		h.fail(fmt.Errorf("output: %w", err))
		return
	}
	s := h.streams[r.Stream]
	switch {
	case s == nil:
		select {
		case <-h.started:
		default:
			close(h.started)
		}
	case !s.push(r.Data):
		h.fail(ErrFlood)
	}
}

func (h *host) write(ctx context.Context, n int, s *sink) {
	taken := 0
	for {
		b := s.pop(ctx)
		if b == nil {
			return
		}
		if _, err := s.to.Write(b); err != nil {
			h.fail(err)
			return
		}
		if taken += len(b); taken >= window/4 {
			s.makeRoom(taken)
			err := opCredit.Do(ctx, h.client, creditArgs{ID: h.id, Stream: n, Bytes: taken})
			if remote := (*agent.RemoteError)(nil); err != nil && !errors.As(err, &remote) { // remote: the session has ended
				return
			}
			taken = 0
		}
	}
}

func (h *host) feed(ctx context.Context) {
	select {
	case <-h.started:
	case <-ctx.Done():
		return
	}
	if h.cmd.Stdin == nil {
		_ = opInput.Do(ctx, h.client, inputArgs{ID: h.id, End: true})
		return
	}
	buf := make([]byte, input)
	for {
		n, err := h.cmd.Stdin.Read(buf)
		if ctx.Err() != nil {
			return
		}
		if n == 0 && err == nil {
			continue
		}
		a := inputArgs{ID: h.id, Data: buf[:n], End: err != nil}
		if opInput.Do(ctx, h.client, a) != nil || err != nil {
			return
		}
	}
}

func (h *host) resize(ctx context.Context) {
	select {
	case <-h.started:
	case <-ctx.Done():
		return
	}
	for {
		select {
		case <-ctx.Done():
			return
		case size, ok := <-h.cmd.Resize:
			if !ok {
				return
			}
			_ = opSize.Do(ctx, h.client, sizeArgs{ID: h.id, Size: size})
		}
	}
}
