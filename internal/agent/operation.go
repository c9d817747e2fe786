package agent

import (
	"context"
	"encoding/json"
)

// Operation is a guest operation with arguments of type A and a result of type R. The guest calls Serve, the
// host calls Call.
type Operation[A, R any] struct{ name string }

// None stands for no arguments or no result.
type None struct{}

// NewOperation makes an operation. Names must be unique in a guest.
func NewOperation[A, R any](name string) Operation[A, R] { return Operation[A, R]{name} }

// Serve registers the operation; call it before this process's [Serve].
func (o Operation[A, R]) Serve(run func(ctx context.Context, args A) (R, error)) {
	Register(o.name, Decoded(func(ctx context.Context, args A) (any, error) { return run(ctx, args) }))
}

// Call runs the operation in a guest, as [Client.Call] does.
func (o Operation[A, R]) Call(ctx context.Context, c *Client, args A) (R, error) {
	return o.CallProgress(ctx, c, args, nil)
}

// Do is Call without the result.
func (o Operation[A, R]) Do(ctx context.Context, c *Client, args A) error {
	_, err := o.Call(ctx, c, args)
	return err
}

// CallProgress is Call with a function for progress messages, as in [Client.CallProgress].
func (o Operation[A, R]) CallProgress(ctx context.Context, c *Client, args A, progress func(json.RawMessage)) (r R,
	err error) {
	err = c.CallProgress(ctx, o.name, args, &r, progress)
	return r, err
}
