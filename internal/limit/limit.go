// Package limit is --timeout: it ends a command's context after a time, and says what ran then.
package limit

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"vnic.dev/vnic/internal/machine/assets"
)

// Error says that a command was not done in time. It is the cause of the end of its context.
type Error struct {
	Limit time.Duration
	Still string // what there was to wait for: "guest0 and guest1 still ran"
}

func (e *Error) Error() string { return fmt.Sprintf("--timeout %v: %s", e.Limit, e.Still) }

// Check says what is wrong with a limit; 0: there is none.
func Check(d time.Duration) error {
	if d < 0 {
		return fmt.Errorf("--timeout %v: a time, as 90s or 10m, or 0: no limit", d)
	}
	return nil
}

// Context ends, after d, with an Error for its cause, which has what g knows at that moment; 0: never. cancel is to be
// called in any case.
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

// Guests has what each guest of a command is doing. The zero value has no guests; nil ignores all calls.
type Guests struct {
	mu    sync.Mutex
	stage string
	names []string
	state map[string]string
}

// The states of a guest.
const (
	Boots = "booted"
	Runs  = "ran"
)

// Stage says what the command does as a whole; "": nothing that has a name.
func (g *Guests) Stage(what string) {
	if g == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.stage = what
}

// Fetching makes steps of a fetch what the command does, and gives them to next, if that is not nil.
func (g *Guests) Fetching(next func(assets.Progress)) func(assets.Progress) {
	return func(p assets.Progress) {
		g.Stage(p.String())
		if next != nil {
			next(p)
		}
	}
}

// Set says what a guest does; "": it has ended.
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

// In gives the guests in a state.
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

// Still says what of them has not ended.
func (g *Guests) Still() string {
	var parts []string
	for _, state := range []string{Boots, Runs} {
		if names := g.In(state); len(names) > 0 {
			parts = append(parts, And(names)+" still "+state)
		}
	}
	still := strings.Join(parts, ", ")
	if still == "" {
		still = "no guest ran"
	}
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

// And lists names.
func And(names []string) string {
	n := len(names)
	if n < 2 {
		return strings.Join(names, "")
	}
	return strings.Join(names[:n-1], ", ") + " and " + names[n-1]
}
