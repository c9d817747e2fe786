// Package limit implements the flag --timeout: it ends a command's context with an error that says what still
// ran.
package limit

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"vnic.dev/vnic/internal/machine/assets"
)

// Error is the cause of a context of [Context] that ended because its time had passed.
type Error struct {
	Limit time.Duration
	Still string // as "guest0 and guest1 still ran"
}

func (e *Error) Error() string { return fmt.Sprintf("--timeout %v: %s", e.Limit, e.Still) }

// Check returns an error if the limit d is negative.
func Check(d time.Duration) error {
	if d < 0 {
		return fmt.Errorf("--timeout %v: a time, as 90s or 10m, or 0: no limit", d)
	}
	return nil
}

// Context returns a context that ends after d with an *Error as its cause; Error.Still is then g.Still(). If d is 0,
// the context has no limit.
// The caller must call cancel.
func Context(ctx context.Context, d time.Duration, g *Guests) (_ context.Context, cancel func()) {
	ctx, end := context.WithCancelCause(ctx)
	if d == 0 {
		return ctx, func() { end(nil) }
	}
	t := time.AfterFunc(d, func() { end(&Error{d, g.Still()}) })
	return ctx, func() {
		t.Stop()
		end(nil)
	}
}

// Guests records the states of a command's guests, and the stage of the command. A nil Guests records nothing.
type Guests struct {
	mu    sync.Mutex
	stage string
	names []string
	state map[string]string
}

// States of a guest that has not ended, as Still shows them.
const (
	Boots = "booted"
	Runs  = "ran"
)

// Stage records what the command does, its stage; "": nothing that Still shows.
func (g *Guests) Stage(what string) {
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.stage = what
}

// Fetching returns a function that records a step of a fetch as the stage and then calls next, unless next is nil.
func (g *Guests) Fetching(next func(assets.Progress)) func(assets.Progress) {
	return func(p assets.Progress) {
		g.Stage(p.String())
		if next != nil {
			next(p)
		}
	}
}

// Set records the state of a guest; "": it has ended.
func (g *Guests) Set(name, state string) {
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.state == nil {
		g.state = map[string]string{}
	}
	if _, known := g.state[name]; !known {
		g.names = append(g.names, name)
	}
	g.state[name] = state
}

// In lists the guests in a state, in the order of their first Set.
func (g *Guests) In(state string) (names []string) {
	if g == nil {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, n := range g.names {
		if g.state[n] == state {
			names = append(names, n)
		}
	}
	return names
}

// Still describes the guests that have not ended ("no guest ran" if there are none), and the stage.
func (g *Guests) Still() string {
	var parts []string
	for _, state := range []string{Boots, Runs} {
		if names := g.In(state); len(names) > 0 {
			parts = append(parts, And(names)+" still "+state)
		}
	}
	still := cmp.Or(strings.Join(parts, ", "), "no guest ran")
	if g == nil {
		return still
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.stage != "" {
		still += " (stage: " + g.stage + ")"
	}
	return still
}

// And joins names, as "a, b and c".
func And(names []string) string {
	n := len(names)
	if n < 2 {
		return strings.Join(names, "")
	}
	return strings.Join(names[:n-1], ", ") + " and " + names[n-1]
}
