package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"vnic.dev/vnic/internal/jsonlines"
)

// ErrClosed is the error of a results channel that ended without a more specific one.
var ErrClosed = errors.New("results channel closed")

// RemoteError is the error with which the agent answered a [Client]'s request. Its text has passed [Plain].
type RemoteError = jsonlines.RemoteError

// PanicError is the error of a results channel after EventPanic.
type PanicError struct{ Panic }

func (e *PanicError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "guest agent ended (%s)", Plain(e.Status))
	for line := range strings.SplitSeq(strings.TrimSpace(e.Output), "\n") {
		b.WriteString("\n\t" + Plain(line))
	}
	return b.String()
}

// Client is the host's end of the results channel. It is safe for concurrent use.
type Client struct {
	*jsonlines.Client
	booted chan struct{}
}

// Conn is a connection to the results channel.
type Conn = jsonlines.Conn

// NewClient takes ownership of conn. The Client reads conn until that ends, the agent has another version of the
// protocol, or EventPanic comes. Then Err returns, in the order of these cases, ErrClosed, a version.Error, or a
// *PanicError.
func NewClient(conn Conn) *Client {
	c := &Client{booted: make(chan struct{})}
	c.Client = jsonlines.NewClient(conn, jsonlines.Options{Protocol: jsonlines.Protocol{Version: protocol,
		MaxLine: MaxLine, Who: "the guest's agent", Fix: "build the guest's image with this vnic"},
		MaxRequest: maxRequest, Closed: func(error) error { return ErrClosed }, Event: c.event, Plain: Plain})
	return c
}

// Booted returns a channel that is closed when the first [EventBoot] has come.
func (c *Client) Booted() <-chan struct{} { return c.booted }

func (c *Client) event(m *jsonlines.Message) error {
	switch m.Event {
	case EventBoot:
		select {
		case <-c.booted:
		default:
			close(c.booted)
		}
	case EventPanic:
		died := new(PanicError)
		if json.Unmarshal(m.Args, &died.Panic) != nil {
			died.Status = "unknown"
		}
		return died
	}
	return nil
}
