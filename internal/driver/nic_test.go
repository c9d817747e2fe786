package driver

import (
	"bytes"
	"testing"

	"vnic.dev/vnic/vhostuser"
)

func TestFramesGoRoundWhole(t *testing.T) {
	for _, c := range []struct {
		name  string
		offer func(uint64) uint64
	}{
		{"all features", nil},
		{"no indirect descriptors", func(f uint64) uint64 { return f &^ vhostuser.FeatureIndirect }},
		{"no event index", func(f uint64) uint64 { return f &^ vhostuser.FeatureEventIdx }},
		{"bare", func(uint64) uint64 { return featsMandatory }},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, rigOptions{offer: c.offer})
			var want [][]byte
			for i, n := range []int{0, 1, 46, 1446, 4030, 4031, 9000, 30000} {
				payload := pattern(make([]byte, n), i)
				hdr := tcpHeader(n)
				r.send(t, 0, TxFrame{Header: hdr, Linear: payload, Cookie: uint64(i + 1)})
				want = append(want, append(hdr, payload...))
			}
			for i, f := range r.rcv.waitFrames(len(want)) {
				if !bytes.Equal(f.Header, want[i]) || f.Split || f.Queue != 0 || f.PayloadLen != 0 {
					t.Errorf("frame %d: %d bytes, want %d; %+v", i, len(f.Header), len(want[i]), f.RxFrame)
				}
			}
			r.rcv.wait(func() bool { return len(r.rcv.cookies) == len(want) })
		})
	}
}
