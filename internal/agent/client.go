package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"vnic.dev/vnic/internal/limits"
)

// ErrClosed is the error of a results channel that has ended.
var ErrClosed = errors.New("results channel closed")

// RemoteError is an operation's error in the guest.
type RemoteError struct{ Op, Text string }

func (e *RemoteError) Error() string { return e.Op + ": " + Plain(e.Text) }

// PanicError is the error after the guest's agent died.
type PanicError struct{ Panic }

func (e *PanicError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "guest agent ended (%s)", Plain(e.Status))
	for line := range strings.SplitSeq(strings.TrimSpace(e.Output), "\n") {
		b.WriteString("\n\t" + Plain(line))
	}
	return b.String()
}

// Client is the host's end of the results channel. Its methods may be called from any goroutine.
type Client struct {
	conn    Conn
	out     *lineWriter
	sending chan struct{} // held while writing
	booted  chan struct{}
	done    chan struct{}

	mu      sync.Mutex
	next    uint64           // under mu
	pending map[uint64]*call // under mu; nil after the end
	err     error            // under mu; set before done is closed
	dropped int              // under mu
}

type call struct {
	progress func(json.RawMessage)
	reply    chan *message
}

// Conn is a connection to the results channel.
type Conn interface {
	io.ReadWriteCloser
	SetWriteDeadline(time.Time) error
}

// NewClient takes ownership of conn and reads it until Close or its end.
func NewClient(conn Conn) *Client {
	c := &Client{
		conn: conn, out: &lineWriter{w: conn}, sending: make(chan struct{}, 1),
		booted: make(chan struct{}), done: make(chan struct{}),
		pending: map[uint64]*call{},
	}
	go c.read()
	return c
}

// Booted returns a channel that is closed once the guest's init has reported that it is done.
func (c *Client) Booted() <-chan struct{} { return c.booted }

// Done returns a channel that is closed when the results channel has ended; then Err returns why.
func (c *Client) Done() <-chan struct{} { return c.done }

// Err returns nil while the channel is open, a *PanicError after the agent died, else ErrClosed.
func (c *Client) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Dropped returns the number of malformed lines from the guest.
func (c *Client) Dropped() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.dropped
}

// Close closes the channel and waits for the reader.
func (c *Client) Close() error {
	err := c.conn.Close()
	<-c.done
	return err
}

// Call runs an operation in the guest and decodes its result into out (may be nil). If ctx ends
// first, Call asks the guest to cancel and returns at once.
func (c *Client) Call(ctx context.Context, op string, args, out any) error {
	return c.CallProgress(ctx, op, args, out, nil)
}

// CallProgress is Call with a function for the operation's progress messages. The channel's reader
// calls it: it must not block or call the Client.
func (c *Client) CallProgress(ctx context.Context, op string, args, out any, progress func(json.RawMessage)) error {
	m := &message{Op: op}
	if args != nil {
		var err error
		if m.Args, err = json.Marshal(args); err != nil {
			return fmt.Errorf("%s: %w", op, err)
		}
	}
	k := &call{progress: progress, reply: make(chan *message, 1)}
	c.mu.Lock()
	if c.pending == nil {
		defer c.mu.Unlock()
		return fmt.Errorf("%s: %w", op, c.err)
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
	if err := c.send(ctx, m); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	select {
	case r := <-k.reply:
		return finish(op, r, out)
	case <-c.done:
		select { // the reply may have been the last line
		case r := <-k.reply:
			return finish(op, r, out)
		default:
		}
		return fmt.Errorf("%s: %w", op, c.Err())
	case <-ctx.Done():
		short, cancel := context.WithTimeout(context.Background(), limits.AgentCancel.Here())
		defer cancel()
		_ = c.send(short, &message{ID: m.ID, Cancel: true})
		return fmt.Errorf("%s: %w", op, ctx.Err())
	}
}

func finish(op string, r *message, out any) error {
	if r.Error != nil {
		return &RemoteError{Op: op, Text: *r.Error}
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(r.OK, out); err != nil {
		return fmt.Errorf("%s: reply: %w", op, err)
	}
	return nil
}

// send writes m. If the guest does not read, send returns when ctx ends.
func (c *Client) send(ctx context.Context, m *message) error {
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
	err := c.out.send(m, maxRequest)
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
	in := newLineReader(c.conn)
	var died *PanicError
	for {
		m, err := in.next()
		c.mu.Lock()
		c.dropped = in.dropped
		if err != nil {
			c.err = ErrClosed
			if died != nil {
				c.err = died
			}
			c.pending = nil
			c.mu.Unlock()
			close(c.done)
			return
		}
		k := c.pending[m.ID]
		c.mu.Unlock()
		switch {
		case m.Event == EventBoot:
			select {
			case <-c.booted:
			default:
				close(c.booted)
			}
		case m.Event == EventPanic && died == nil:
			died = new(PanicError)
			if json.Unmarshal(m.Data, &died.Panic) != nil {
				died.Status = "unknown"
			}
			_ = c.conn.Close() // nothing more is sent: the next read ends the loop
		case k == nil || m.Event != "":
		case m.OK != nil || m.Error != nil:
			select {
			case k.reply <- m:
			default: // a second reply
			}
		case k.progress != nil && m.Progress != nil:
			k.progress(m.Progress)
		}
	}
}
