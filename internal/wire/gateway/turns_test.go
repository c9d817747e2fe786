package gateway

import (
	"context"
	"testing"

	"vnic.dev/vnic/internal/testkit"
)

// Whoever waits behind many of another owner is the second to go on. One that gives up takes nobody's turn.
func TestTurnsGoByOwner(t *testing.T) {
	a, b := owner{link: 1}, owner{link: 2}
	q := newTurns(1)
	testkit.OK(t, q.take(t.Context(), a))
	var of [2][]chan struct{}
	for range 3 {
		of[0] = append(of[0], q.wait(a))
	}
	of[1] = append(of[1], q.wait(b), q.wait(b))
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for _, o := range []owner{a, b, {link: 3}} {
		testkit.ErrorIs(t, q.take(gone, o), context.Canceled)
	}
	for i, who := range []int{0, 1, 0, 1, 0} {
		q.give()
		select {
		case <-of[who][0]:
			of[who] = of[who][1:]
		default:
			t.Fatalf("turn %d is not of owner %d", i, who+1)
		}
	}
	q.give()
	testkit.Equal(t, "turns left", q.free, 1)
	testkit.Equal(t, "owners that wait", len(q.by)+len(q.order), 0)
	testkit.OK(t, q.take(t.Context(), b))
}
