package rdma

import (
	"testing"

	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/testkit"
)

// reth returns the header of a request for n bytes at off of the victim's memory.
func (v *victim) reth(op uint8, off uint64, n uint32) header {
	return header{op: op, ackReq: true, va: base + off, key: v.b.mr, dmaLen: n}
}

// The responder sends one NAK for packets ahead of the expected one, however many come.
func TestPacketsAhead(t *testing.T) {
	bubble(t, func(t *testing.T) {
		v := newVictim(t, nil)
		for round, ahead := range []uint32{1, 2, 1000, 1<<23 - 1} {
			h := v.reth(opWriteOnly, 0, 8)
			h.psn = after(v.psn, ahead)
			for range 1000 {
				v.give(h, fill(8)...)
				h.psn = after(v.psn, 1+h.psn*31%(1<<22))
			}
			v.only(nakSequence, v.psn)
			v.next(v.reth(opWriteOnly, uint64(round)*100, 8), fill(8)...)
			copy(v.want[round*100:], fill(8))
			v.only(synAck, after(v.psn, psnMask))
		}
		v.state(control.QPReady, 0)
		v.unharmed()
	})
}

// Invariant: nic/rdma: A repeated WRITE or SEND is acknowledged but not executed again (9.7.1.1).
func TestPacketsAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		v := newVictim(t, nil)
		v.recv(1, v.b.sge(9000, 100))
		v.recv(2, v.b.sge(9100, 100))
		v.recv(3, v.b.sge(9200, 100))
		v.next(v.reth(opWriteOnly, 0, 8), fill(8)...)
		copy(v.want, fill(8))
		v.next(header{op: opSendOnly, ackReq: true}, fill(20)...)
		copy(v.want[9000:], fill(20))
		v.next(func() header { h := v.reth(opWriteOnlyImm, 50, 8); h.imm = 9; return h }(), fill(8)...)
		copy(v.want[50:], fill(8))
		v.only(synAck, after(v.psn, psnMask))
		testkit.Equal(t, "completions", len(v.b.poll()), 2)
		v.b.mem[0], v.want[0] = 0xee, 0xee // repeated requests must not overwrite this byte
		for _, back := range []uint32{1, 2, 3, 1000, 1 << 22, 1 << 23} {
			for _, h := range []header{v.reth(opWriteOnly, 0, 8), {op: opSendOnly}, v.reth(opWriteOnlyImm, 0, 8),
				{op: opWriteMiddle},
				v.reth(opWriteFirst, 0, 1<<31+9)} {
				h.psn = after(v.psn, -back&psnMask)
				v.give(h, fill(8)...)
				v.only(synAck, after(v.psn, psnMask))
			}
		}
		testkit.Equal(t, "completions of what came again", len(v.b.poll()), 0)
		v.state(control.QPReady, 0)
		v.next(header{op: opSendOnly, ackReq: true}, fill(30)...) // control: a new SEND is executed
		copy(v.want[9200:], fill(30))
		testkit.Equal(t, "completions of what is new", len(v.b.poll()), 1)
		v.drain()
		v.unharmed()
	})
}

// The responder answers a repeated READ, or the rest of one, if its packets are before the expected one and its key
// allows it.
func TestReadsAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		v := newVictim(t, nil)
		v.next(v.reth(opReadRequest, 0, 1000), nil...)
		v.psn = after(v.psn, 3)
		testkit.Equal(t, "packets", len(v.drain()), 4)
		// A huge MR, mostly without memory behind it.
		huge := testkit.Must(v.b.AddMR(control.MR{PD: v.b.pd, Kind: control.MRGuest, Access: control.AccessRemoteRead,
			Len:    1 << 40,
			Ranges: []control.MRRange{{IOVA: 0, Len: 1 << 40}}}))(t)
		for name, c := range map[string]struct {
			back   uint32
			h      header
			frames int
		}{
			"all of it":                            {4, v.reth(opReadRequest, 0, 1000), 4},
			"the rest":                             {2, v.reth(opReadRequest, 512, 488), 2},
			"one packet more":                      {4, v.reth(opReadRequest, 0, 1025), 0},
			"the rest, and more":                   {1, v.reth(opReadRequest, 0, 257), 0},
			"another key":                          {4, header{op: opReadRequest, va: base, key: 3, dmaLen: 4}, 0},
			"outside":                              {4, v.reth(opReadRequest, memSize, 1), 0},
			"as many packets as there are numbers": {4, header{op: opReadRequest, key: huge, dmaLen: 0xffff_ff00}, 0},
			"a count that wraps":                   {4, header{op: opReadRequest, key: huge, dmaLen: 0xffff_ffff}, 0},
		} {
			c.h.psn = after(v.psn, -c.back&psnMask)
			v.give(c.h)
			n := 0
			for n < 100 && v.frame() {
				n++
			}
			if n != c.frames {
				t.Errorf("%s: %d frames, not %d", name, n, c.frames)
			}
			v.state(control.QPReady, 0)
		}
		testkit.OK(t, v.b.DelMR(huge))
		v.unharmed()
	})
}

// Invariant: nic/rdma: A peer has at most the negotiated number of concurrent READs: the next one
// is refused. A repeated READ takes no place of a new one.
func TestReadFlood(t *testing.T) {
	bubble(t, func(t *testing.T) {
		for _, depth := range []uint8{0, 1, 4, MaxReads} {
			v := newVictim(t, func(p *control.QPPath) { p.ReadDepth = depth })
			const pkts = 10
			for range depth {
				v.next(v.reth(opReadRequest, 0, pkts*256))
				v.psn = after(v.psn, pkts-1)
			}
			v.state(control.QPReady, 0)
			again := v.reth(opReadRequest, 0, pkts*256)
			again.psn = forgedPSN
			for range 1000 { // repeats of the first READ, whose answer is not complete
				if depth > 0 {
					v.give(again)
				}
			}
			// At least the frames of the answers to the new READs are sent, and at most as many again for repeats.
			v.mute = true
			for v.frame() {
			}
			if most := 2 * int(depth) * pkts; v.n < int(depth)*pkts || v.n > most {
				t.Errorf("%d frames for READs of %d, and a thousand that came again; at most %d", v.n, int(depth)*pkts, most)
			}
			v.mute = false
			for range depth {
				v.next(v.reth(opReadRequest, 0, pkts*256))
				v.psn = after(v.psn, pkts-1)
			}
			v.next(v.reth(opReadRequest, 0, pkts*256)) // one more than allowed
			v.state(control.QPError, control.WCRemoteInvalid)
			got := v.drain()
			if len(got) == 0 || got[len(got)-1].syndrome != nakInvalid || got[len(got)-1].psn != after(v.psn, psnMask) {
				t.Fatalf("depth %d: answered %+v", depth, got)
			}
			v.unharmed()
		}
	})
}

// A repeated READ takes no place of a new one: else a peer that timed out too early would be refused a READ that it
// is allowed.
func TestReadsAgainTakeNoPlace(t *testing.T) {
	bubble(t, func(t *testing.T) {
		v := newVictim(t, func(p *control.QPPath) { p.ReadDepth = 2 })
		v.next(v.reth(opReadRequest, 0, 8))
		v.next(v.reth(opReadRequest, 8, 8))
		v.frame() // the answer to the first READ
		again := v.reth(opReadRequest, 0, 8)
		again.psn = forgedPSN
		v.give(again) // as if it and the answer crossed on the wire
		v.next(v.reth(opReadRequest, 16, 8))
		v.state(control.QPReady, 0)
		got := v.drain()
		for i, off := range []int{8, 0, 16} {
			if len(got) != 3 || string(got[i].payload) != string(v.want[off:off+8]) || got[i].psn != after(forgedPSN,
				uint32(off)/8) {
				t.Fatalf("answered %+v", got)
			}
		}
		v.unharmed()
	})
}

// A NAK for a later request does not overtake answers to earlier ones (9.7.5.1.1).
func TestReadsBeforeAFatalRequestAreAnswered(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPair(t, nil)
		copy(p.b.mem[5000:], fill(3000))
		p.a.post(p.qa,
			control.WR{ID: 1, Op: control.WRRead, Key: p.b.mr, Remote: base + 5000, SGEs: []control.SGE{p.a.sge(0, 3000)},
				Flags: control.WRSignaled},
			control.WR{ID: 2, Op: control.WRWrite, Key: 5, Remote: base, SGEs: []control.SGE{p.a.sge(0, 3)}},
			control.WR{ID: 3, Op: control.WRWrite, Key: p.b.mr, Remote: base, SGEs: []control.SGE{p.a.sge(0, 3)}})
		p.run()
		got := p.a.poll()
		want := []control.WC{{ID: 1, QPN: p.qa, Op: control.WRRead, Len: 3000},
			{ID: 2, QPN: p.qa, Op: control.WRWrite, Status: control.WCRemoteAccess},
			{ID: 3, QPN: p.qa, Op: control.WRWrite, Status: control.WCFlushed}}
		if len(got) != 3 || got[0] != want[0] || got[1] != want[1] || got[2] != want[2] {
			t.Fatalf("completions %+v, not %+v", got, want)
		}
		if string(p.a.mem[:3000]) != string(fill(3000)) {
			t.Error("wrong bytes")
		}
	})
}
