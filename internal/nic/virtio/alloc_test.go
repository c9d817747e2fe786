//go:build !race

package virtio_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/nic/nictest"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/splitter"
	"vnic.dev/vnic/virtq"
)

// The measured path goes from a chain on one guest's transmit ring to a used element on the other guest's receive ring.
//
// Invariant: hot path: Nothing is allocated for a packet.
func TestPathAllocatesNothing(t *testing.T) {
	for _, payload := range []int{64, 1448, 65000} {
		t.Run(fmt.Sprint(payload), func(t *testing.T) {
			nictest.StreamAllocatesNothing(t, newStream(t, payload))
		})
	}
}

// A polling thread runs the path, and the switch checks source addresses.
//
// Invariant: hot path: Nothing is allocated for a packet.
func TestPolledPathAllocatesNothing(t *testing.T) {
	testkit.Slow(t)
	for _, payload := range []int{64, 65000} {
		t.Run(fmt.Sprint(payload), func(t *testing.T) {
			ro := rawOptions{pollers: newPollers(t, 1, false), claims: true}
			nictest.StreamAllocatesNothing(t, newStreamOf(t, payload, ro))
		})
	}
}

// Payload goes from the sender's GPU to the receiver's, by header split, in a flow that a flow counter counts.
//
// Invariant: hot path: Nothing is allocated for a packet.
func TestSplitPathAllocatesNothing(t *testing.T) {
	w := newWorld(t)
	nictest.SplitTo(t, w.B, 1, 2000)
	_, err := w.B.Port().AddFlowCounter(control.FlowCounter{Proto: 6, Local: netip.MustParseAddrPort("10.0.0.2:2000"),
		Remote: netip.MustParseAddrPort("10.0.0.1:1000")})
	w.B.OK(err)
	f := tcp(w.A, w.B, 6000)
	w.B.Post(1, 64)
	bufs := w.A.layOut(&f, true)
	var used [rawRing]virtq.Used
	round := func() {
		for range 8 {
			w.A.OK(w.A.rings[1].Add(bufs, nil, 0))
		}
		w.A.publish(1)
		for n := 0; n < 16; {
			k := w.B.poll(2, used[:])
			for _, u := range used[:k] {
				w.B.repost(1, u)
			}
			w.B.publish(2)
			n += k
		}
		for n := 0; n < 8; {
			n += w.A.poll(1, used[:])
		}
	}
	for range 100 {
		round()
	}
	testkit.Equal(t, "allocations of 8 frames", testing.AllocsPerRun(200, round), 0)
	rx, _ := w.B.Port().QueueCounters(1)
	if rx.HostBytes != 0 || rx.DeviceBytes != rx.Packets*6000 {
		t.Errorf("%+v", rx)
	}
}

// Invariant: hot path: Nothing is allocated for a packet.
func TestMergedPathAllocatesNothing(t *testing.T) { mergedAllocateNothing(t, rawOptions{}) }

// Each frame is a batch of its own, and the port holds it until the last frame of the merge comes.
//
// Invariant: hot path: Nothing is allocated for a packet.
func TestHeldPathAllocatesNothing(t *testing.T) {
	mergedAllocateNothing(t, rawOptions{hold: time.Second, clock: func() int64 { return 1 }})
}

func mergedAllocateNothing(t *testing.T, ro rawOptions) {
	ro.pairs, ro.mtu, ro.p2p = 3, 9000, true
	w := newWorldWith(t, ro)
	nictest.SplitTo(t, w.B, 1, 2000)
	const frames = 16
	if ro.hold > 0 {
		_, err := w.B.Port().AddFlowCounter(control.FlowCounter{Proto: 6, Local: netip.MustParseAddrPort("[fd00::2]:2000"),
			Remote: netip.MustParseAddrPort("[fd00::1]:1000")})
		w.B.OK(err)
	}
	var bufs [frames][]virtq.Buf
	for i := range bufs {
		f := nictest.Make(w.B.mac, w.A.mac, nictest.Spec{V6: true, Payload: 1448, Seq: uint32(i) * 1448,
			Flags: splitter.ACK | uint8(i/(frames-1))*splitter.PSH})
		bufs[i] = w.A.layOut(&f, false)
	}
	w.B.Post(1, 64)
	var used [rawRing]virtq.Used
	round := func() {
		for i := range bufs {
			w.A.OK(w.A.rings[1].Add(bufs[i], nil, 0))
			if ro.hold > 0 {
				w.A.publish(1)
				for w.A.poll(1, used[:]) == 0 {
				}
			}
		}
		if ro.hold == 0 {
			w.A.publish(1)
			for n := 0; n < frames; {
				n += w.A.poll(1, used[:])
			}
		}
		for k := w.B.poll(2, used[:]); k > 0; k, _ = w.B.rings[2].Poll(used[:]) { // until all frames have come
			for _, u := range used[:k] {
				w.B.repost(1, u)
			}
			w.B.publish(2)
		}
	}
	for range 100 {
		round()
	}
	testkit.Equal(t, "allocations of 16 frames", testing.AllocsPerRun(200, round), 0)
	merged, packets := w.B.Port().Coalesced()
	if merged < 100*frames || packets*frames < merged || ro.hold > 0 && packets*frames != merged {
		t.Errorf("%d frames are merged to %d packets", merged, packets)
	}
}
