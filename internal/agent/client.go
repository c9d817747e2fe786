package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"vnic.dev/vnic/internal/jsonlines"
)

// ErrClosed says that the results channel has ended.
var ErrClosed = errors.New("results channel closed")

// RemoteError is an operation's error, in the guest's words, which are plain.
type RemoteError = jsonlines.RemoteError

// PanicError says that the guest's agent died.
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
	*jsonlines.Client
	booted chan struct{}
}

// Conn is what a Client needs of the results channel.
type Conn = jsonlines.Conn

// NewClient takes over conn and reads it until Close or its end. Err is a version.Error when the agent is of another
// vnic, a *PanicError when it died, else ErrClosed.
func NewClient(conn Conn) *Client {
	c := &Client{booted: make(chan struct{})}
	c.Client = jsonlines.NewClient(conn, jsonlines.Options{Protocol: jsonlines.Protocol{Version: protocol,
		MaxLine: MaxLine, Who: "the guest's agent", Fix: "build the guest's image with this vnic"},
		MaxRequest: maxRequest, Closed: func(error) error { return ErrClosed }, Event: c.event, Plain: Plain})
	return c
}

// Booted is closed once the guest's init has reported.
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
