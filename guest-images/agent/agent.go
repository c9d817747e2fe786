// Package agent is the guest's end of the results channel, and the host's client of it: JSON lines both ways over a
// serial port.
//
// The host sends a Request; the guest answers each with a Reply that carries its id. Lines of the guest without an id
// are Events. One operation runs in one goroutine; operations run side by side.
package agent

import (
	"context"
	"encoding/json"
	"errors"
	"io"
)

// Config is /vnic/config.json of the initramfs: what the guest's init does before the agent serves.
type Config struct {
	Modules  []string          `json:"modules,omitempty"` // loaded in this order
	Hostname string            `json:"hostname,omitempty"`
	Channel  string            `json:"channel,omitempty"` // "" = /dev/ttyS1
	Extra    map[string]string `json:"extra,omitempty"`
}

// Env is what operations know about the guest.
type Env struct {
	Config Config
}

// Op is an operation. Its result is sent as JSON.
type Op func(ctx context.Context, args json.RawMessage) (any, error)

// Register adds an operation. It is called before Serve (init functions); a second registration of a name replaces the first.
func Register(name string, op Op) {}

// Serve answers requests until the host asks for power-off, ctx ends or rw fails.
func Serve(ctx context.Context, rw io.ReadWriter, env Env) error {
	return errors.New("agent: Serve: not written yet")
}

// Client is the host's end.
type Client struct{}

// Call runs an operation in the guest and decodes its result into out (may be nil).
func (c *Client) Call(ctx context.Context, op string, args, out any) error {
	return errors.New("agent: Call: not written yet")
}
