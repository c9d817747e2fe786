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

// A sends up to the edge of the window that it was told last, in a segment of a byte at the end; before that byte
// arrives, B has told, which A has not heard, of a window that is closed but for less than a unit of the window scale.
//
// Invariant: stack: What a peer sends within the window that it was told is taken, and not sent twice.
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
		write(t, ca, "x") // before, the filter knows no sequence number
		skip(t, cb, 1)
		again.Store(0)
		for range 128 { // this opens the congestion window
			write(t, ca, piece)
			skip(t, cb, len(piece))
		}
		filled := 0
		// What B does not read closes the window. What is left of it at the end is more than a segment of a byte.
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
		for range 8 { // whose arrival tells A if a byte is missing
			write(t, ca, piece[:2000])
		}
		skip(t, cb, 1+8*2000)
		if n := again.Load(); n > 0 {
			t.Errorf("v6=%v: %d segments out of order: something was sent again\na: %s\nb: %s", v6, n, ca.State(), cb.State())
		}
	}
}

// window is what a connection's peer lets it send, once all is acknowledged.
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
