package virtio_test

import (
	"testing"

	"vnic.dev/vnic/nic/nictest"
)

// A guest that comes, posts, stops, resets and hangs up again and again while others send to it: they go on.
func TestChurnUnderTraffic(t *testing.T) {
	w := newWorld(t)
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() { // a sends to both, for as long as the other churns
		defer close(ended)
		toBad, toB := tcp(w.a, w.bad, 700), tcp(w.a, w.b, 900)
		start := w.a.rawGuest.next // of its memory: each round uses the same
		for {
			select {
			case <-stop:
				return
			default:
			}
			w.a.rawGuest.next = start
			w.b.Post(0, 1)
			w.a.Send(0, toBad, toB)
			if got := w.b.Receive(0); string(got.Bytes()) != string(toB.Bytes()) {
				t.Error("bytes differ")
				return
			}
			w.b.rawGuest.next -= 68 << 10
		}
	}()
	ro := rawOptions{pairs: 3, mtu: 9000}
	for i := range 6 {
		w.bad.hangUp()
		w.bad.connect(ro)
		for q := range w.bad.flight {
			w.bad.flight[q], w.bad.used[q] = 0, nil
		}
		w.bad.Post(0, 16)
		w.bad.Send(0, nictest.Frame{Header: tcpFrame(w.a.mac, w.bad.mac, 0)})
		switch i % 3 {
		case 0:
			_, err := w.bad.front.GetVringBase(0)
			w.bad.must(err)
		case 1:
			w.bad.must(w.bad.front.ResetDevice())
		}
	}
	close(stop)
	<-ended
	w.moves(t)
}
