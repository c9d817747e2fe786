package virtio_test

import (
	"bytes"
	"slices"
	"testing"

	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/nic/nictest"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/splitter"
	"vnic.dev/vnic/virtq"
)

// The frames of a merge that needs too many chains arrive one by one, and the device returns no chain unused.
//
// Invariant: nic: A merge that does not fit is undone, and loses no frame that fits alone.
func TestMergeOfTooManyChains(t *testing.T) {
	const (
		frames = 30
		pieces = 32
		chain  = 8 * pieces // bytes; a packet may take 129 chains, which are too short for all frames in one packet
		chains = 200
	)
	w := newWorld(t)
	posted := map[uint32][]byte{}
	for i := range uint32(chains) {
		addr, mem := w.B.Alloc(chain)
		posted[i] = mem
		var bufs []virtq.Buf
		for off := uint64(0); off < chain; off += 8 {
			bufs = append(bufs, virtq.Buf{Addr: addr + off, Len: 8})
		}
		w.B.OK(w.B.rings[0].Add(nil, bufs, i))
	}
	w.B.publish(0)
	var fs []nictest.Frame
	for i := range uint32(frames) {
		fs = append(fs, nictest.Make(w.B.mac, w.A.mac, nictest.Spec{V6: true, Payload: 1448, Seq: i * 1448}))
	}
	w.A.Send(0, fs...)
	var used [rawRing]virtq.Used
	n, err := w.B.rings[0].Poll(used[:])
	w.B.OK(err)
	left := used[:n]
	for i := range fs {
		var got []byte
		for k := 1; k > 0; k-- {
			if len(left) == 0 || left[0].Len == 0 {
				t.Fatalf("frame %d: %d chains are left, the next with nothing in it", i, len(left))
			}
			got = append(got, posted[left[0].Cookie][:left[0].Len]...)
			if len(got) == int(left[0].Len) {
				k = int(le.Uint16(got[10:]))
			}
			left = left[1:]
		}
		if got[1] != 0 || !bytes.Equal(got[12:], fs[i].Bytes()) {
			t.Fatalf("frame %d: %d bytes, gso_type %d", i, len(got)-12, got[1])
		}
	}
	testkit.Equal(t, "chains left", len(left), 0)
	merged, _ := w.B.Port().Coalesced()
	testkit.Equal(t, "frames merged", merged, 0)
}

// A queue that splits only frames with a minimum of payload (Threshold) does not merge frames with less.
//
// Invariant: nic: Cutting a merged GSO packet gives the original frames, byte for byte, with
// complete checksums.
func TestMergeBelowThreshold(t *testing.T) {
	w := newWorld(t)
	nictest.SplitTo(t, w.B, 1, 2000)
	w.B.OK(w.B.Port().SetSplit(control.Split{Queue: 1, On: true, Threshold: 100}))
	w.B.Post(1, 16)
	var fs []nictest.Frame
	seq := uint32(0)
	for _, n := range []int{200, 200, 90, 90, 90, 200, 200} {
		fs = append(fs, nictest.Make(w.B.mac, w.A.mac, nictest.Spec{V6: true, Payload: n, Seq: seq}))
		seq += uint32(n)
	}
	w.A.Send(0, fs...)
	var used [rawRing]virtq.Used
	n, err := w.B.rings[2].Poll(used[:])
	w.B.OK(err)
	var got []uint32
	for _, u := range used[:n] {
		got = append(got, u.Len)
	}
	head := uint32(12 + len(fs[0].Header))
	if want := []uint32{head + 400, head + 90, head + 90, head + 90, head + 400}; !slices.Equal(got, want) {
		t.Errorf("packets of %v bytes, want %v", got, want)
	}
}

// With only one of VIRTIO_NET_F_GUEST_TSO4 and GUEST_TSO6, only frames of that IP version are merged.
//
// Invariant: nic: Nothing is merged for a driver that does not accept GSO packets.
func TestMergedByFeature(t *testing.T) {
	const n = 4
	for name, c := range map[string]struct {
		drop   uint64
		v4, v6 int
	}{
		"both": {0, 1, 1}, "GUEST_TSO4": {1 << 8, 1, n}, "GUEST_TSO6": {1 << 7, n, 1}, "none": {1<<7 | 1<<8, n, n},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorldWith(t, rawOptions{pairs: 3, mtu: 9000, p2p: true, drop: c.drop})
			for v6, want := range map[bool]int{false: c.v4, true: c.v6} {
				var fs []nictest.Frame
				for i := range uint16(n) {
					f := nictest.Make(w.B.mac, w.A.mac, nictest.Spec{V6: v6, Payload: 1448, Seq: uint32(i) * 1448})
					if !v6 {
						f.Header[splitter.EthLen+5] = byte(i) // identification
						var h splitter.Headers
						w.B.OK(splitter.Parse(f.Header, uint32(len(f.Header)+len(f.Payload)), &h))
						splitter.FixIPv4(&h, f.Header)
					}
					fs = append(fs, f)
				}
				w.B.Post(0, n)
				w.A.Send(0, fs...)
				var used [rawRing]virtq.Used
				k, err := w.B.rings[0].Poll(used[:])
				w.B.OK(err)
				testkit.Equal(t, "packets received", k, want)
			}
		})
	}
}
