package stack_test

import (
	"fmt"
	"io"
	"sync"
	"testing"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/internal/stacktest"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/splitter"
	"vnic.dev/vnic/stack"
)

// The last segment and its first repetition are lost while an earlier segment is being recovered; likewise a FIN behind
// the last data.
//
// Invariant: stack: What is sent last is sent until it arrives, also with RACK.
func TestLastSegmentIsSentUntilItArrives(t *testing.T) { // not beside other tests: a busy CPU makes long timeouts
	const total = 12 * 1448
	for _, withRACK := range []bool{true, false} {
		for _, last := range []string{"FIN", "data", "data and FIN"} {
			t.Run(fmt.Sprintf("RACK=%v/%s", withRACK, last), func(t *testing.T) {
				t.Parallel()
				w := newRig(t, stacktest.Options{Cut: true}, func(o *stack.Options) { o.RACK = withRACK })
				bindRX(t, w.b, 0, 1<<20, 7, 1)
				tx := bindTX(t, w.a, 0, 1<<20)
				ca, cb := w.connect(7, false)
				// This opens the congestion window; netstack recovers a connection's first segment only with a timeout.
				send(t, ca, tx, 0, 50_000)
				skip(t, cb, 50_000)
				completed(t, ca)
				var mu sync.Mutex
				var first, end uint32
				seen, lost, finLost := 0, 0, 0 // times: the first segment was seen, the last one lost, a FIN after data lost
				recovering, queued := make(chan struct{}), make(chan struct{})
				w.na.Filter(func(h *splitter.Headers, payload int) bool {
					mu.Lock()
					defer mu.Unlock()
					switch {
					case payload == 0 && h.TCPFlags&splitter.FIN == 0:
						return true
					case seen == 0:
						first, end, seen = h.Seq, h.Seq+total, 1
						return false
					case h.Seq == first:
						if seen++; seen == 2 { // hold the retransmission: the recovery lasts until it arrives
							close(recovering)
							<-queued
						}
						return true
					case h.Seq == end && lost < 2:
						lost++
						return false
					case h.TCPFlags&splitter.FIN != 0 && h.Seq == end+100 && finLost < 2:
						finLost++
						return false
					}
					return true
				})
				send(t, ca, tx, 0, total)
				<-recovering
				want := total
				if last != "FIN" {
					send(t, ca, tx, 0, 100)
					want += 100
				}
				if last != "data" {
					testkit.OK(t, ca.CloseWrite())
				}
				close(queued)
				skip(t, cb, want)
				if last != "data" {
					if _, _, _, err := cb.RecvDevmem(nil, make([]byte, 1), devmem.Trunc); err != io.EOF {
						t.Fatalf("%v\na: %s", err, ca.State())
					}
				}
				testkit.Equal(t, "times that the last segment was lost", lost, 2)
			})
		}
	}
}
