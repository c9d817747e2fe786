package rdma

import (
	"math/bits"
	"testing"

	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/testkit"
)

// Invariant: rdma: Keys are random except for their index: a peer cannot guess one from another.
func TestKeysAndFirstQueuePairsAreRandom(t *testing.T) {
	const engines = 64
	firsts, keys := map[uint32]bool{}, map[uint32]int{}
	differ := uint32(0)
	var last uint32
	for i := range engines {
		c := newEnd(t, 1).c
		c.Random = nil
		e := New(c, 1)
		pd, cq := testkit.Must(e.AddPD())(t), testkit.Must(e.AddCQ(MaxWRs))(t)
		a := testkit.Must(e.AddQP(control.QP{PD: pd, SendCQ: cq, RecvCQ: cq, MaxSend: 1}))(t)
		b := testkit.Must(e.AddQP(control.QP{PD: pd, SendCQ: cq, RecvCQ: cq, MaxSend: 1}))(t)
		if a < MaxQPs || a >= 1<<qpnBits || b < MaxQPs || b >= 1<<qpnBits || a == b {
			t.Errorf("queue pairs %#x and %#x", a, b)
		}
		firsts[a] = true
		for range 16 {
			key := testkit.Must(e.AddMR(control.MR{PD: pd, Kind: control.MRGuest, Access: control.AccessRemoteRead, VA: base,
				Len: 1, Ranges: []control.MRRange{{Len: 1}}}))(t)
			if key < MaxMRs || keys[key] == i+1 { // different engines may use the same key
				t.Errorf("key %#x", key)
			}
			keys[key] = i + 1
			differ |= (key ^ last) &^ (MaxMRs - 1)
			last = key
			if e.regionOf(key) == nil || e.regionOf(key+MaxMRs) != nil || e.regionOf(key^1<<31) != nil {
				t.Errorf("key %#x is found by another one, or not by itself", key)
			}
		}
		e.Close()
	}
	if len(firsts) < engines-2 || len(keys) < 16*engines-4 {
		t.Errorf("%d first queue pairs and %d keys of %d engines", len(firsts), len(keys), engines)
	}
	if n := bits.OnesCount32(differ); n != 22 {
		t.Errorf("%d bits of keys differ", n)
	}
}

// Invariant: rdma: Numbers stay within their bits, are never 0 or 1, and lead to their object,
// whatever the random bits are.
func TestNumbersOfAFullTable(t *testing.T) {
	for _, limit := range []uint{qpnBits, keyBits} {
		for _, random := range []uint32{0, 1, 1<<22 - 2, 1<<22 - 1, 1<<16 - 2, 1<<16 - 1, ^uint32(0), 1 << 31} {
			s := newSlots[int](8)
			s.setTag(limit, random)
			s.next = random % 256
			given := map[uint32]*int{}
			for i := range 256 {
				n, v := s.free(limit), i
				if n < 256 || limit < 32 && n >= 1<<limit || given[n] != nil {
					t.Fatalf("%d bits, %#x: number %#x", limit, random, n)
				}
				given[n] = &v
				s.set(n, &v)
			}
			testkit.Equal(t, "of a full table", s.free(limit), uint32(0))
			for n, v := range given {
				testkit.Equal(t, "found", s.place(n).Load(), v)
				s.del(n)
			}
			testkit.Equal(t, "left", s.count, 0)
		}
	}
}

// The responder counts the bytes of a SEND in 32 bits, and the count must not wrap.
//
// Invariant: rdma: A SEND of more than 2 GiB is refused.
func TestSendsAreNoLongerThanAMessage(t *testing.T) {
	bubble(t, func(t *testing.T) {
		for name, c := range map[string]struct {
			off  uint32
			want control.WCStatus
		}{
			"to the last byte": {maxRead - 256, control.WCSuccess},
			"one more":         {maxRead - 255, control.WCRemoteInvalid},
			"wraps":            {1<<32 - 256, control.WCRemoteInvalid},
		} {
			v := newVictim(t, nil)
			const size = 5 << 30
			ranges := make([]control.MRRange, size/memSize)
			for i := range ranges {
				ranges[i].Len = memSize
			}
			key := testkit.Must(v.b.AddMR(control.MR{PD: v.b.pd, Kind: control.MRGuest, Access: control.AccessLocalWrite,
				VA: base, Len: size, Ranges: ranges}))(t)
			v.recv(1, control.SGE{VA: base, Len: 1<<32 - 1, Key: key}, control.SGE{VA: base, Len: 1 << 30, Key: key})
			v.next(header{op: opSendFirst}, fill(256)...)
			q := v.b.qpOf(v.qpn)
			q.resp.off = c.off // as if the message's first c.off bytes had come
			v.next(header{op: opSendLast, ackReq: true}, fill(256)...)
			testkit.Equal(t, name, q.cause, c.want)
		}
	})
}
