package jsonlines

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"syscall"
	"time"

	"vnic.dev/vnic/internal/limits"
)

// RemoteError is a request's error, in the other end's words.
type RemoteError struct{ Op, Text string }

func (e *RemoteError) Error() string { return e.Op + ": " + e.Text }

// Client asks the other end of a connection. Its methods may be called from any goroutine.
type Client struct {
	o       Options
	conn    Conn
	out     *Writer
	sending chan struct{} // held while writing
	done    chan struct{}
	reading sync.WaitGroup

	mu      sync.Mutex
	next    uint64           // under mu
	pending map[uint64]*call // under mu; nil after the end
	err     error            // under mu; set before done is closed
	dropped int              // under mu
}

type call struct {
	progress func(json.RawMessage)
	reply    chan *Message
}

// Conn is what a Client needs of a connection.
type Conn interface {
	io.ReadWriteCloser
	SetWriteDeadline(time.Time) error
}

// Options are a Client's.
type Options struct {
	Protocol
	MaxRequest int                      // bytes of a line that is written
	Strict     bool                     // a line that is no message ends the connection
	Closed     func(error) error        // what the end of the connection means, or with Strict a line that is no message
	Event      func(*Message) error     // takes an event, of which an error ends the connection; nil: there are none
	Plain      func(text string) string // makes an error of the other end fit to be shown; nil: it is shown as it is
}

// NewClient takes over conn and reads it until Close or its end.
func NewClient(conn Conn, o Options) *Client {
	c := &Client{o: o, conn: conn, out: NewWriter(conn, o.Version, o.MaxRequest), sending: make(chan struct{}, 1),
		done: make(chan struct{}), pending: map[uint64]*call{}}
	c.reading.Go(c.read)
	return c
}

// Done is closed when the connection has ended; Err then says why.
func (c *Client) Done() <-chan struct{} { return c.done }

// Err is nil while the connection is open. Then it is a version.Error, what an event has ended it with, what Fail has, or
// what Options.Closed says.
func (c *Client) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Dropped counts lines of the other end that were no messages.
func (c *Client) Dropped() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.dropped
}

// Close ends the connection and waits for the reader.
func (c *Client) Close() error {
	err := c.conn.Close()
	c.reading.Wait()
	return err
}

// Fail ends the connection for a reason, but for its Close. The first reason counts.
func (c *Client) Fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err, c.pending = err, nil
		close(c.done)
	}
}

// Call sends a request and decodes its result into out (may be nil). When ctx ends first, the other end is told to
// cancel and Call returns at once.
func (c *Client) Call(ctx context.Context, op string, args, out any) error {
	return c.CallProgress(ctx, op, args, out, nil)
}

// CallProgress is Call with a function for what the other end reports on its way. It is called from the connection's
// reader: it must not block or call the Client.
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
	k := &call{progress: progress, reply: make(chan *Message, 1)}
	c.mu.Lock()
	if c.pending == nil {
		defer c.mu.Unlock()
		return c.err
	}
	c.next++
	m.ID = c.next
	c.pending[m.ID] = k
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		delete(c.pending, m.ID)
		c.mu.Unlock()
	}()
	if err := c.Send(ctx, m); err != nil && !errors.Is(err, syscall.EPIPE) { // it has hung up, and may have said why
		return err
	}
	select {
	case r := <-k.reply:
		return c.finish(op, r, out)
	case <-c.done:
		select { // the reply may have been the last line
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

// Send writes m; an end that does not read holds it up no longer than ctx.
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
			c.mu.Lock()
			c.dropped++
			c.mu.Unlock()
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

// take takes a message.
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
		default: // a second reply
		}
	case k.progress != nil && m.Progress != nil:
		k.progress(m.Progress)
	}
	return nil
}
