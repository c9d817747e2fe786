package jsonlines

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"vnic.dev/vnic/internal/limits"
)

// RemoteError is the error with which the other end answered a request Op. Text has passed Options.Plain, if that is
// set.
type RemoteError struct{ Op, Text string }

func (e *RemoteError) Error() string { return e.Op + ": " + e.Text }

// Client sends requests and events, and receives answers and events. Its methods may be called from several
// goroutines.
type Client struct {
	o       Options
	conn    Conn
	out     *Writer
	sending chan struct{}   // has an element while a goroutine writes
	open    context.Context // ends with the cause that Err returns
	end     context.CancelCauseFunc
	reading sync.WaitGroup
	dropped atomic.Int64

	mu      sync.Mutex
	next    uint64           // under mu
	pending map[uint64]*call // under mu
}

type call struct {
	progress func(json.RawMessage)
	reply    chan *Message
}

// Conn is the connection of a Client.
type Conn interface {
	io.ReadWriteCloser
	SetWriteDeadline(time.Time) error
}

// Options configure a Client.
type Options struct {
	Protocol
	MaxRequest int  // bound of a sent line, in bytes, with its newline
	Strict     bool // a line that is too long or is no message fails the Client (Fail); without Strict it is skipped
	// Closed is required. It converts a read's error, or with Strict an error of a line, to Client.Err's.
	Closed func(error) error
	// Event gets each event. Its error fails the Client (Fail). If Event is nil, events are ignored.
	Event func(*Message) error
	Plain func(text string) string // cleans the text of a RemoteError; nil: unchanged
}

// NewClient takes ownership of conn, and starts to read it.
func NewClient(conn Conn, o Options) *Client {
	c := &Client{o: o, conn: conn, out: NewWriter(conn, o.Version, o.MaxRequest), sending: make(chan struct{}, 1),
		pending: map[uint64]*call{}}
	c.open, c.end = context.WithCancelCause(context.Background())
	c.reading.Go(c.read)
	return c
}

// Done returns a channel that is closed when the Client stops reading the connection, or when Fail was called; then
// Err returns the cause.
func (c *Client) Done() <-chan struct{} { return c.open.Done() }

// Err returns nil until Done's channel is closed, then the cause.
func (c *Client) Err() error { return context.Cause(c.open) }

// Dropped returns the number of lines that were skipped because they were too long or no messages. With Options.Strict
// it is 0.
func (c *Client) Dropped() int { return int(c.dropped.Load()) }

// Close closes the connection and waits for the goroutine that reads it.
func (c *Client) Close() error {
	err := c.conn.Close()
	c.reading.Wait()
	return err
}

// Fail ends the calls that wait for answers, and later ones, with err. It does not close the connection. After the
// Client's first error Fail has no effect.
func (c *Client) Fail(err error) { c.end(err) }

// Call sends a request and decodes its result into out, unless out is nil. If ctx ends while Call waits for the
// answer, Call tries for limits.AgentCancel to send the other end a cancellation, and returns without the answer.
func (c *Client) Call(ctx context.Context, op string, args, out any) error {
	return c.CallProgress(ctx, op, args, out, nil)
}

// CallProgress is Call with a function that gets the request's progress messages; nil: none. The function must not
// block or call the Client.
func (c *Client) CallProgress(ctx context.Context, op string, args, out any, progress func(json.RawMessage)) error {
	err := c.call(ctx, op, args, out, progress)
	if err != nil && !errors.As(err, new(*RemoteError)) {
		err = fmt.Errorf("%s: %w", op, err)
	}
	return err
}

func (c *Client) call(ctx context.Context, op string, args, out any, progress func(json.RawMessage)) (err error) {
	m := &Message{Op: op}
	if args != nil {
		if m.Args, err = json.Marshal(args); err != nil {
			return err
		}
	}
	if err := c.Err(); err != nil {
		return err
	}
	k := &call{progress: progress, reply: make(chan *Message, 1)}
	c.mu.Lock()
	c.next++
	m.ID = c.next
	c.pending[m.ID] = k
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		delete(c.pending, m.ID)
		c.mu.Unlock()
	}()
	// after EPIPE: the other end may have answered before it closed the connection
	if err := c.Send(ctx, m); err != nil && !errors.Is(err, syscall.EPIPE) {
		return err
	}
	select {
	case r := <-k.reply:
		return c.finish(op, r, out)
	case <-c.Done():
		select { // the answer may have come before the end
		case r := <-k.reply:
			return c.finish(op, r, out)
		default:
		}
		return c.Err()
	case <-ctx.Done():
		short, cancel := context.WithTimeout(context.Background(), limits.AgentCancel.Here())
		defer cancel()
		_ = c.Send(short, &Message{ID: m.ID, Cancel: true})
		return ctx.Err()
	}
}

func (c *Client) finish(op string, r *Message, out any) error {
	if r.Error != nil {
		text := *r.Error
		if c.o.Plain != nil {
			text = c.o.Plain(text)
		}
		return &RemoteError{Op: op, Text: text}
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(r.OK, out); err != nil {
		return fmt.Errorf("reply: %w", err)
	}
	return nil
}

// Send writes m. If ctx ends before m is written, Send gives up, and may leave an incomplete line.
func (c *Client) Send(ctx context.Context, m *Message) error {
	select {
	case c.sending <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-c.sending }()
	fired := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = c.conn.SetWriteDeadline(time.Unix(1, 0))
		close(fired)
	})
	err := c.out.Send(m)
	if !stop() {
		<-fired
		_ = c.conn.SetWriteDeadline(time.Time{})
		if err != nil {
			err = ctx.Err()
		}
	}
	return err
}

func (c *Client) read() {
	in := NewReader(c.conn, c.o.Protocol)
	for {
		m, err := in.Next()
		bad := errors.Is(err, ErrTooLong) || errors.Is(err, ErrNoMessage)
		if bad && !c.o.Strict {
			c.dropped.Add(1)
			continue
		}
		switch {
		case m == nil:
			err = c.o.Closed(err)
		case err == nil:
			err = c.take(m)
		}
		if err != nil {
			c.Fail(err)
			return
		}
	}
}

func (c *Client) take(m *Message) error {
	c.mu.Lock()
	k := c.pending[m.ID]
	c.mu.Unlock()
	switch {
	case m.Event != "" && c.o.Event != nil:
		return c.o.Event(m)
	case k == nil || m.Event != "":
	case m.OK != nil || m.Error != nil:
		select {
		case k.reply <- m:
		default:
		}
	case k.progress != nil && m.Progress != nil:
		k.progress(m.Progress)
	}
	return nil
}
