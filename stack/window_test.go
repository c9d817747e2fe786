package stack_test

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/stacktest"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/splitter"
	"vnic.dev/vnic/stack"
)

// Shortly before B's window closes, B's acknowledgments begin to be lost. B then advertises less than one unit of the
// window scale, and A sends the last byte of the window that it has received before.
//
// Invariant: stack: With windows of up to 16 MiB, a segment that arrives within the window that a
// peer has received is accepted, so it is not sent twice.
func TestWindowIsKeptOpenAsFarAsPromised(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		w := newRig(t, stacktest.Options{}, func(o *stack.Options) {
			o.RecvBuffer, o.MinRTO = 1<<20, time.Minute
		})
		ca, cb := w.connect(7, v6)
		var next, again, acks, acked atomic.Uint32
		w.na.Filter(func(h *splitter.Headers, payload int) bool {
			if end := h.Seq + uint32(payload); payload > 0 && next.Swap(end) != h.Seq && next.Load() != 0 {
				again.Add(1)
			}
			return true
		})
		piece := strings.Repeat("x", 32<<10)
		write(t, ca, "x") // the filter counts the first segment as out of order
		skip(t, cb, 1)
		again.Store(0)
		for range 128 { // opens the congestion window
			write(t, ca, piece)
			skip(t, cb, len(piece))
		}
		filled := 0
		// B does not read, so the window closes.
		left := window(t, ca)
		for left > 4000 {
			n := min(left-2000, len(piece))
			write(t, ca, piece[:n])
			filled += n
			left = window(t, ca)
		}
		w.nb.Filter(func(h *splitter.Headers, _ int) bool {
			acked.Store(h.Ack)
			acks.Add(1)
			return false
		})
		write(t, ca, piece[:left-1])
		testkit.Eventually(t, "all but a byte is acknowledged", func() bool { return acked.Load() == next.Load() })
		before := acks.Load()
		write(t, ca, "y")
		testkit.Eventually(t, "the last byte is answered", func() bool { return acks.Load() > before })
		w.nb.Filter(nil)
		skip(t, cb, filled+left-1)
		for range 8 { // B's answers to these show A whether a byte is missing
			write(t, ca, piece[:2000])
		}
		skip(t, cb, 1+8*2000)
		if n := again.Load(); n > 0 {
			t.Errorf("v6=%v: %d segments out of order: something was sent again\na: %s\nb: %s", v6, n, ca.State(), cb.State())
		}
	}
}

// window waits until the peer of c has acknowledged all bytes, and returns the peer's window.
func window(t *testing.T, c devmem.Conn) (wnd int) {
	t.Helper()
	testkit.Eventually(t, "all is acknowledged", func() bool {
		var iss, una, nxt, written int
		_, s, _ := strings.Cut(c.State(), "snd{")
		_, err := fmt.Sscanf(s, "iss %d una %d nxt %d written %d wnd %d", &iss, &una, &nxt, &written, &wnd)
		testkit.OK(t, err)
		return una == written
	})
	return wnd
}
