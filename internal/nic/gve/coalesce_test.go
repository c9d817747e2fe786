package gve

import (
	"testing"

	"vnic.dev/vnic/internal/nic/nictest"
	"vnic.dev/vnic/internal/testkit"
)

// With small buffers a merge ends when the packet would need more than the 17 allowed buffers.
//
// Invariant: nic: A merge that does not fit is undone, and loses no frame that fits alone.
func TestMergeTakes17Buffers(t *testing.T) {
	const mss, buf, n = 1448, 2048, 30
	w := newWorldWith(t, rawOptions{pairs: 3, mtu: 9000, p2p: true, rsc: true, bufSize: buf})
	seq := uint32(0)
	sends := func(want ...int) {
		t.Helper()
		var fs []nictest.Frame
		for range n {
			fs = append(fs, nictest.Make(w.Bad.mac, w.A.mac, nictest.Spec{V6: true, Payload: mss, Seq: seq}))
			seq += mss
		}
		w.Bad.Post(0, 2*n)
		w.A.Send(0, fs...)
		head := len(fs[0].Header)
		for _, k := range want {
			got := w.Bad.Receive(0)
			if len(got.Bytes()) != head+k*mss || got.Buffers != (head+k*mss+buf-1)/buf || got.Buffers > maxRxBufs {
				t.Errorf("%d bytes in %d buffers; want %d frames", len(got.Bytes()), got.Buffers, k)
			}
		}
	}
	var apart [n]int
	for i := range apart {
		apart[i] = 1
	}
	// The limits are for 17 buffers of 4096 bytes: the merge of n frames needs more than 17 of buf bytes, and is undone.
	sends(apart[:]...)
	for i := range w.Bad.dev.res.rx {
		w.Bad.dev.res.rx[i].buf = buf
	}
	w.Bad.dev.setLimits()
	const first = (maxRxBufs*buf - 74) / mss
	sends(first, n-first)
	q := w.Bad.dev.rx[0]
	testkit.Equal(t, "frames too big", q.count.tooBig.get(), 0)
	testkit.Equal(t, "frames without buffers", q.count.noBuffer.get(), 0)
}
