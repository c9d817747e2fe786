package rdma

import (
	"testing"
	"testing/synctest"
	"time"

	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/testkit"
)

// In this file the victim sends the requests, and the tests forge its peer's answers.

// posted posts work to the victim's queue pair, and returns the frames that the queue pair sends (none with mute).
func (v *victim) posted(wrs ...control.WR) []answered {
	v.t.Helper()
	v.b.post(v.qpn, wrs...)
	return v.drain()
}

func (v *victim) read(id uint64, into, n uint64) control.WR {
	return control.WR{ID: id, Op: control.WRRead, Flags: control.WRSignaled, Key: 1, Remote: 0,
		SGEs: []control.SGE{v.b.sge(into, n)}}
}

func (v *victim) wr(id uint64, n uint64) control.WR {
	return control.WR{ID: id, Op: control.WRWrite, Flags: control.WRSignaled, Key: 1, SGEs: []control.SGE{v.b.sge(0, n)}}
}

// Invariant: nic/rdma: Answers without a request, of another length or out of order write nothing
// and complete nothing.
func TestForgedAnswers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		v := newVictim(t, nil)
		ack := func(psn uint32, syndrome uint8) { v.give(header{op: opAck, psn: psn, syndrome: syndrome}) }
		all := func(psn uint32) {
			for _, s := range []uint8{synAck, 0, synRNR | 5, 0x40, nakSequence, nakInvalid, nakAccess, nakOperate, 0x64, 0x7f} {
				ack(psn, s)
			}
			for _, op := range []uint8{opReadRespFirst, opReadRespMid, opReadRespLast, opReadRespOnly} {
				for _, n := range []int{0, 1, 255, 256, 257, 1000} {
					v.give(header{op: op, psn: psn, syndrome: synAck}, fill(n)...)
				}
			}
		}
		nothing := func(what string) {
			t.Helper()
			if got := v.drain(); len(got) > 0 {
				t.Fatalf("%s: the queue pair sends %+v", what, got)
			}
			if got := v.b.poll(); len(got) > 0 {
				t.Fatalf("%s: completions %+v", what, got)
			}
			v.state(control.QPReady, 0)
			v.same()
		}
		for _, d := range []uint32{0, 1, 2, 1 << 22, 1<<23 - 1, 1 << 23, 1<<23 + 1, psnMask} {
			all(after(ownPSN, d))
		}
		nothing("nothing was asked")

		const into = 40_000
		testkit.Equal(t, "frames", len(v.posted(v.read(1, into, 600))), 1) // its answer has three packets
		for _, d := range []uint32{3, 4, 1 << 22, 1<<23 - 1, 1 << 23, 1<<23 + 1, psnMask} {
			all(after(ownPSN, d))
		}
		nothing("numbers that were never sent")
		for _, op := range []uint8{opReadRespFirst, opReadRespMid, opReadRespLast, opReadRespOnly} {
			for _, n := range []int{0, 1, 88, 255, 257, 4000} {
				v.give(header{op: op, psn: ownPSN, syndrome: synAck}, fill(n)...)
			}
		}
		v.give(header{op: opReadRespFirst, psn: ownPSN, syndrome: nakAccess}, fill(256)...) // a NAK has no payload
		nothing("wrong lengths")
		v.give(header{op: opReadRespMid, psn: after(ownPSN, 1)}, fill(256)...)
		testkit.Equal(t, "asked again for what lacks", len(v.drain()), 1)
		for range 1000 {
			v.give(header{op: opReadRespMid, psn: after(ownPSN, 1)}, fill(256)...)
			ack(after(ownPSN, 2), synAck)
		}
		nothing("once")

		// The requester accepts the right answer, once.
		v.give(header{op: opReadRespFirst, psn: ownPSN, syndrome: synAck}, fill(256)...)
		copy(v.want[into:], fill(256))
		v.b.mem[into], v.want[into] = 0x77, 0x77
		v.give(header{op: opReadRespFirst, psn: ownPSN, syndrome: synAck}, fill(256)...)
		v.same()
		v.drain()
		v.give(header{op: opReadRespMid, psn: after(ownPSN, 1)}, fill(256)...)
		v.give(header{op: opReadRespLast, psn: after(ownPSN, 2), syndrome: synAck}, fill(88)...)
		copy(v.want[into+256:], fill(256))
		copy(v.want[into+512:], fill(88))
		if got := v.b.poll(); len(got) != 1 || got[0] != (control.WC{ID: 1, QPN: v.qpn, Op: control.WRRead, Len: 600}) {
			t.Fatalf("completions %+v", got)
		}
		v.drain()

		// The peer answers a WRITE as if it were a READ.
		testkit.Equal(t, "frames", len(v.posted(v.wr(2, 600))), 3)
		first := after(ownPSN, 3)
		v.give(header{op: opReadRespOnly, psn: first, syndrome: synAck}, fill(256)...)
		nothing("an answer to a READ")
		ack(after(first, 2), synAck)
		if got := v.b.poll(); len(got) != 1 || got[0] != (control.WC{ID: 2, QPN: v.qpn, Op: control.WRWrite}) {
			t.Fatalf("completions %+v", got)
		}
		v.unharmed()
	})
}

// A NAK of an error fails the work request whose packet it names (10.7.3.1, table 97).
func TestStatusOfNAKs(t *testing.T) {
	for syndrome, want := range map[uint8]control.WCStatus{nakInvalid: control.WCRemoteInvalid,
		nakAccess: control.WCRemoteAccess, nakOperate: control.WCRemoteOperation} {
		for _, packet := range []uint32{0, 1, 2} { // index of the packet that the NAK names, of the second request's three
			bubble(t, func(t *testing.T) {
				v := newVictim(t, nil)
				v.recv(9)
				testkit.Equal(t, "frames", len(v.posted(v.wr(1, 8), v.wr(2, 600), v.wr(3, 8))), 5)
				v.give(header{op: opAck, psn: after(ownPSN, 1+packet), syndrome: syndrome})
				got := v.b.poll()
				w := []control.WC{{ID: 1, QPN: v.qpn, Op: control.WRWrite}, {ID: 2, QPN: v.qpn, Op: control.WRWrite, Status: want},
					{ID: 3, QPN: v.qpn, Op: control.WRWrite, Status: control.WCFlushed},
					{ID: 9, QPN: v.qpn, Op: control.WRRecv, Status: control.WCFlushed}}
				if len(got) != 4 || got[0] != w[0] || got[1] != w[1] || got[2] != w[2] || got[3] != w[3] {
					t.Fatalf("completions %+v, not %+v", got, w)
				}
				v.state(control.QPError, want)
				v.b.post(v.qpn, v.wr(4, 8)) // is flushed, too
				if got := v.b.poll(); len(got) != 1 || got[0].Status != control.WCFlushed || got[0].ID != 4 {
					t.Fatalf("completions %+v", got)
				}
				testkit.Equal(t, "frames of a queue pair in error", len(v.drain()), 0)
				v.unharmed()
			})
		}
	}
}

// Invariant: nic/rdma: A NAK for a sequence error costs at most a window of frames, and none if it
// repeats one since which no new packet was acknowledged.
func TestStormsOfNAKs(t *testing.T) {
	bubble(t, func(t *testing.T) {
		v := newVictim(t, func(p *control.QPPath) { p.Timeout = 20 })
		v.mute = true
		const packets = 400
		v.posted(v.wr(1, packets*256))
		testkit.Equal(t, "frames without an answer", v.n, Window)
		before := v.n
		for range 10_000 {
			v.give(header{op: opAck, psn: ownPSN, syndrome: nakSequence})
			v.drain()
		}
		testkit.Equal(t, "frames for 10,000 NAKs of one number", v.n-before, Window)
		before = v.n
		const news = 50
		for i := range uint32(news) {
			for range 100 {
				v.give(header{op: opAck, psn: after(ownPSN, 1+i), syndrome: nakSequence})
			}
			v.drain()
		}
		if n := v.n - before; n > news*Window {
			t.Errorf("%d frames for %d NAKs", n, news)
		}
		before = v.n
		for i := range uint32(news) { // the victim sends nothing between these NAKs
			v.give(header{op: opAck, psn: after(ownPSN, news+1+i), syndrome: nakSequence})
		}
		v.drain()
		testkit.Equal(t, "frames for NAKs that came at once", v.n-before, Window)
		before = v.n
		for i := range uint32(10_000) {
			v.give(header{op: opAck, psn: after(ownPSN, i%Window), syndrome: synAck})
			v.drain()
		}
		if n := v.n - before; n > Window {
			t.Errorf("%d frames for ACKs", n)
		}
		v.state(control.QPReady, 0)
		v.unharmed()
	})
}

// After an RNR NAK the queue pair waits for the NAK's delay, and sends again as often as its retries allow.
func TestStormsOfRNR(t *testing.T) {
	for _, retries := range []uint8{0, 1, 6, 7} {
		bubble(t, func(t *testing.T) {
			v := newVictim(t, func(p *control.QPPath) { p.RNR, p.Timeout = retries, 20 })
			testkit.Equal(t, "frames", len(v.posted(v.wr(1, 8), v.wr(2, 8))), 2)
			rnr := func() { v.give(header{op: opAck, psn: ownPSN, syndrome: synRNR | 1}) }
			for i := range 20 {
				rnr()
				if retries < 7 && i == int(retries) {
					got := v.b.poll()
					if len(got) != 2 || got[0].Status != control.WCRNRExceeded || got[1].Status != control.WCFlushed {
						t.Fatalf("completions %+v", got)
					}
					v.state(control.QPError, control.WCRNRExceeded)
					v.unharmed()
					return
				}
				testkit.Equal(t, "frames while it waits", len(v.drain()), 0)
				v.later()
				testkit.Equal(t, "frames when it has waited", len(v.drain()), 2)
			}
			v.state(control.QPReady, 0)
			for range 1000 { // RNR NAKs while it waits make it send nothing
				rnr()
			}
			testkit.Equal(t, "frames", len(v.drain()), 0)
			v.later()
			testkit.Equal(t, "frames", len(v.drain()), 2)
			v.give(header{op: opAck, psn: after(ownPSN, 1), syndrome: synAck})
			testkit.Equal(t, "completions", len(v.b.poll()), 2)
			v.unharmed()
		})
	}
}

// After an RNR NAK the queue pair waits as long as table 46 says for the NAK's timer code.
func TestTimesOfRNR(t *testing.T) {
	for code, d := range map[uint8]time.Duration{0: 655360 * time.Microsecond, 1: 10 * time.Microsecond,
		5:  60 * time.Microsecond,
		12: 640 * time.Microsecond, 18: 5120 * time.Microsecond,
		25: 61440 * time.Microsecond, 31: 491520 * time.Microsecond} {
		bubble(t, func(t *testing.T) {
			v := newVictim(t, func(p *control.QPPath) { p.Timeout = 20 })
			testkit.Equal(t, "frames", len(v.posted(v.wr(1, 8))), 1)
			time.Sleep(time.Second)
			v.give(header{op: opAck, psn: ownPSN, syndrome: synRNR | code})
			look := func() int {
				synctest.Wait()
				v.b.schedule(v.b.qpOf(v.qpn))
				return len(v.drain())
			}
			time.Sleep(d - 2*time.Microsecond)
			testkit.Equal(t, "frames before its time", look(), 0)
			time.Sleep(2 * time.Microsecond)
			testkit.Equal(t, "frames at its time", look(), 1)
		})
	}
}
