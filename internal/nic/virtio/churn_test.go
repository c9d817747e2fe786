package virtio_test

import (
	"testing"

	"vnic.dev/vnic/internal/nic/nictest"
	"vnic.dev/vnic/internal/testkit"
)

// A guest connects, posts, stops, resets and hangs up again and again. Meanwhile frames from guest A to guest B
// arrive.
func TestChurnUnderTraffic(t *testing.T) {
	testkit.Slow(t)
	w := newWorld(t)
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		toBad, toB := tcp(w.A, w.Bad, 700), tcp(w.A, w.B, 900)
		start := w.A.Next // each round uses the same memory of A again
		for {
			select {
			case <-stop:
				return
			default:
			}
			w.A.Next = start
			w.B.Post(0, 1)
			w.A.Send(0, toBad, toB)
			nictest.Arrives(t, w.B, 0, &toB)
			w.B.Next -= 68 << 10
		}
	}()
	ro := rawOptions{pairs: 3, mtu: 9000}
	for i := range 6 {
		w.Bad.hang()
		w.Bad.connect(ro)
		w.Bad.Post(0, 16)
		w.Bad.Send(0, tcp(w.Bad, w.A, 0))
		switch i % 3 {
		case 0:
			w.Bad.base(0)
		case 1:
			w.Bad.OK(w.Bad.front.ResetDevice())
		}
	}
	close(stop)
	<-ended
	w.Moves(t)
}
