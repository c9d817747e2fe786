//go:build !race

package virtio_test

import (
	"fmt"
	"net/netip"
	"testing"

	"vnic.dev/vnic/control"
	"vnic.dev/vnic/nic/nictest"
	"vnic.dev/vnic/virtq"
)

// The whole datapath, from a chain on one guest's transmit ring to a used element on the other's
// receive ring, allocates nothing: neither do the workers, which AllocsPerRun counts too.
//
// Invariant: hot path: Nothing is allocated for a packet.
func TestPathAllocatesNothing(t *testing.T) {
	for _, payload := range []int{64, 1448, 65000} {
		t.Run(fmt.Sprint(payload), func(t *testing.T) {
			l := newLane(t, payload)
			for range 100 {
				l.round()
			}
			if n := testing.AllocsPerRun(500, l.round); n != 0 {
				t.Fatalf("%d frames of %d bytes cost %v allocations", laneBatch, payload, n)
			}
			var tap nictest.Quiet
			for _, g := range []*rawGuest{l.a, l.b} {
				g.dev.Port().Link().SetTap(&tap)
			}
			for range 10 {
				l.round()
			}
			if n := testing.AllocsPerRun(100, l.round); n != 0 {
				t.Fatalf("%d frames of %d bytes cost %v allocations with a tap", laneBatch, payload, n)
			}
			if sent, came := tap.Seen(); sent < 100*laneBatch || came < 100*laneBatch {
				t.Errorf("the tap saw %d frames sent, %d received", sent, came)
			}
		})
	}
}

// The same with split: headers to host memory, payload to the GPU, on a metered flow.
//
// Invariant: hot path: Nothing is allocated for a packet.
func TestSplitPathAllocatesNothing(t *testing.T) {
	w := newWorld(t)
	w.b.must(w.b.Port().SetSplit(control.Split{Queue: 1, On: true}))
	_, err := w.b.Port().AddFlow(control.FlowRule{Proto: 6, DstPort: 2000, Queue: 1})
	w.b.must(err)
	_, err = w.b.Port().AddMeter(control.Meter{Proto: 6, Local: netip.MustParseAddrPort("10.0.0.2:2000"),
		Remote: netip.MustParseAddrPort("10.0.0.1:1000")})
	w.b.must(err)
	f := tcp(w.a, w.b, 6000)
	w.b.Post(1, 64)
	addr, mem := w.a.alloc(12 + len(f.Header))
	copy(mem[12:], f.Header)
	bufs := []virtq.Buf{{Addr: addr, Len: uint32(len(mem))}, {Addr: rawGPU + rawGPUSize/2, Len: 6000}}
	var used [rawRing]virtq.Used
	round := func() {
		for range 8 {
			w.a.must(w.a.rings[1].Add(bufs, nil, 0))
		}
		w.a.publish(1)
		for n := 0; n < 16; {
			k := w.b.poll(2, used[:])
			for _, u := range used[:k] {
				w.b.must(w.b.rings[2].Add(nil, w.b.posted[1][u.Cookie], u.Cookie))
			}
			w.b.publish(2)
			n += k
		}
		for n := 0; n < 8; {
			n += w.a.poll(1, used[:])
		}
	}
	for range 100 {
		round()
	}
	if n := testing.AllocsPerRun(200, round); n != 0 {
		t.Errorf("8 frames cost %v allocations", n)
	}
	rx, _ := w.b.Port().QueueCounters(1)
	if rx.HostBytes != 0 || rx.DeviceBytes != rx.Packets*6000 {
		t.Errorf("%+v", rx)
	}
}
