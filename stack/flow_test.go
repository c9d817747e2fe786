package stack

import (
	"fmt"
	"math"
	"testing"

	"pgregory.net/rapid"
	"vnic.dev/vnic/gpumem"
	"vnic.dev/vnic/internal/driver"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/splitter"
)

func TestFlowOffsetsWrap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		iss := rapid.Uint32().Draw(t, "iss")
		una := rapid.Uint64Range(0, 1<<40).Draw(t, "una")
		d := rapid.Int64Range(-int64(min(una+1, 1<<30)), 1<<30).Draw(t, "distance")
		f := &flow{iss: iss, issKnown: true, una: una, irs: iss, irsKnown: true, acked: una}
		seq := iss + 1 + uint32(int64(una)+d)
		testkit.Equal(t, "offset sent", f.txOffset(seq), int64(una)+d)
		testkit.Equal(t, "offset received", f.rxOffset(seq), int64(una)+d)
	})
}

// A flow's parts and sends match a plain list of the stream's bytes.
//
// Invariant: stack: A byte is sent from where the application said, until it is acknowledged and
// the device is done.
func TestFlowPlacesAndCompletes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := &flow{iss: math.MaxUint32 - 100, issKnown: true}
		b := &txBinding{}
		b.refs.Store(1 << 30)
		var where []int64 // for each byte its offset in the GPU; -1: it is in host memory
		type call struct {
			end      uint64
			inFlight int
			number   uint32
		}
		var calls []call
		var sends uint32
		var nextDone uint32
		type fly struct{ lo, hi uint32 }
		var flying []fly
		check := func() {
			for f.done.len() > 0 {
				c := f.done.pop()
				if c.lo != nextDone || c.hi < c.lo {
					t.Fatalf("done [%d, %d], next is %d", c.lo, c.hi, nextDone)
				}
				nextDone = c.hi + 1
			}
			want := uint32(0)
			for _, c := range calls {
				if c.end > f.una || c.inFlight > 0 {
					break
				}
				want = c.number + 1
			}
			if nextDone != want {
				t.Fatalf("%d sends are done, want %d", nextDone, want)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"": func(*rapid.T) { check() },
			"write": func(t *rapid.T) {
				n := rapid.IntRange(1, 3000).Draw(t, "n")
				f.wrote(n)
				for range n {
					where = append(where, -1)
				}
			},
			"send": func(t *rapid.T) {
				f.openSend(b)
				total := 0
				for range rapid.IntRange(1, 30).Draw(t, "ranges") {
					want := rapid.IntRange(1, 300).Draw(t, "want")
					n := rapid.IntRange(0, want).Draw(t, "taken")
					off := rapid.Uint64Range(0, 1<<30).Draw(t, "off")
					f.addPart(3, off, want)
					f.cutPart(n)
					for i := range n {
						where = append(where, int64(off)+int64(i))
					}
					total += n
				}
				f.closeSend(total)
				if total > 0 {
					calls = append(calls, call{end: uint64(len(where)), number: sends})
					sends++
				}
			},
			"frame": func(t *rapid.T) {
				if uint64(len(where)) == f.una {
					t.Skip("all is acknowledged")
				}
				off := rapid.Uint64Range(f.una, uint64(len(where))-1).Draw(t, "off")
				n := rapid.IntRange(1, int(uint64(len(where))-off)).Draw(t, "n")
				for pos := off; pos < off+uint64(n); {
					linear, device, lo, hi := f.place(pos, int(off+uint64(n)-pos), make([]driver.Range, 0, maxRanges))
					next := pos
					for range linear {
						if where[next] != -1 {
							t.Fatalf("byte %d is not linear", next)
						}
						next++
					}
					for _, r := range device {
						for i := range uint64(r.Len) {
							if r.GPU != 3 || where[next] != int64(r.Off+i) {
								t.Fatalf("byte %d is placed at %d, not %d", next, r.Off+i, where[next])
							}
							next++
						}
					}
					if next == pos || next > off+uint64(n) {
						t.Fatalf("a frame of %d bytes, %d wanted", next-pos, n)
					}
					if len(device) > 0 {
						flying = append(flying, fly{lo, hi})
						for i := lo; i <= hi; i++ {
							f.sends.elem(int(i-f.firstSend)).inFlight++
							calls[i].inFlight++
						}
					}
					pos = next
				}
				f.nxt = max(f.nxt, off+uint64(n))
			},
			"txDone": func(t *rapid.T) {
				if len(flying) == 0 {
					t.Skip("nothing flies")
				}
				i := rapid.IntRange(0, len(flying)-1).Draw(t, "which")
				for c := flying[i].lo; c <= flying[i].hi; c++ {
					calls[c].inFlight--
				}
				f.txDone(flying[i].lo, flying[i].hi)
				flying = append(flying[:i], flying[i+1:]...)
			},
			"ack": func(t *rapid.T) {
				to := rapid.Uint64Range(0, uint64(len(where))+10).Draw(t, "to")
				una := f.una
				f.acknowledge(f.iss+1+uint32(to), 0)
				if want := max(una, to); to <= f.nxt && f.una != want || to > f.nxt && f.una != una {
					t.Fatalf("ack of %d, sent %d: una %d, was %d", to, f.nxt, f.una, una)
				}
			},
		})
	})
}

func TestFlowAdmission(t *testing.T) {
	const irs = 5000
	for _, c := range []struct {
		name         string
		acked, ahead uint64
		off          int
		n            int
		flags        uint8
		pages        gpumem.Supply
		rxShutdown   bool
		want         verdict
	}{
		{name: "in order", n: 100, want: deliver},
		{name: "in order, low", n: 100, pages: gpumem.SupplyLow, want: deliver},
		{name: "in order behind what is not acknowledged, low", ahead: 300, off: 300, n: 100, pages: gpumem.SupplyLow,
			want: deliver},
		{name: "in order behind what is not acknowledged, dry", ahead: 300, off: 300, n: 100, pages: gpumem.SupplyEmpty,
			want: refuse},
		{name: "the missing one, dry", acked: 100, ahead: 300, off: 100, n: 100, pages: gpumem.SupplyEmpty, want: deliver},
		{name: "the missing one again, low", acked: 100, ahead: 5000, off: 100, n: 50, pages: gpumem.SupplyLow,
			want: deliver},
		{name: "overlaps the missing one, low", acked: 100, ahead: 100, off: 50, n: 51, pages: gpumem.SupplyLow,
			want: deliver},
		{name: "out of order", off: 100, n: 100, want: deliver},
		{name: "out of order, low", off: 100, n: 100, pages: gpumem.SupplyLow, want: refuse},
		{name: "repeated but not acknowledged, low", acked: 100, ahead: 5000, off: 150, n: 50, pages: gpumem.SupplyLow,
			want: refuse},
		{name: "old", acked: 1000, ahead: 1000, off: 900, n: 100, want: junk},
		{name: "old, low", acked: 1000, ahead: 1000, off: 0, n: 100, pages: gpumem.SupplyLow, want: junk},
		{name: "far beyond any window", off: maxWindow + 1, n: 10, want: junk},
		{name: "with SYN", n: 10, flags: splitter.SYN, want: junk},
		{name: "with RST", n: 10, flags: splitter.RST, want: junk},
		{name: "nobody reads", n: 10, rxShutdown: true, want: junk},
		{name: "no payload, low", pages: gpumem.SupplyLow, want: deliver},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := &flow{irs: irs, irsKnown: true, acked: c.acked, ahead: c.ahead, rxShutdown: c.rxShutdown}
			h := &splitter.Headers{Seq: irs + 1 + uint32(c.off), TCPFlags: c.flags}
			testkit.Equal(t, "verdict", f.receive(h, 0, c.n, 0, c.pages), c.want)
		})
	}
}

func TestShadowQueueTakesPostedPagesOnly(t *testing.T) {
	pool := testkit.Must(gpumem.NewPool(0, 0, 64*pageSize, func(int) {}, func() {}))(t)
	l := makeShadowQueue(1, &rxBinding{pool: pool}, nil, 4)
	if slot, ok := l.take([]driver.Range{{Off: 0, Len: 10}}, 10); ok || slot != junkSlot || len(l.free) != 3 {
		t.Errorf("slot %d, %v, %d slots are free", slot, ok, len(l.free))
	}
}

func TestEndWakesWriters(t *testing.T) {
	c := &Conn{wsig: make(chan struct{}, 1), csig: make(chan struct{}, 1)}
	f := &flow{conn: c}
	f.end()
	if len(c.wsig) != 1 || len(c.csig) != 1 || !f.ended {
		t.Errorf("woken: writer %d, reader of completions %d", len(c.wsig), len(c.csig))
	}
}

func TestFlowKeepsUntilRead(t *testing.T) {
	l := &shadowQueue{slots: make([][]gpumem.Piece, 100)}
	f := &flow{irsKnown: true}
	for i, end := range []int{300, 100, 200, 300, 250} {
		f.keep(uint32(end-99), 100, l, uint32(i))
	}
	for _, c := range []struct{ n, want int }{{50, 0}, {49, 0}, {1, 1}, {100, 1}, {99, 1}, {1, 2}} {
		testkit.Equal(t, fmt.Sprintf("frames dropped at %d", f.read), len(f.advance(c.n, nil)), c.want)
	}
	if f.pending.len() > 0 || f.pages != 0 {
		t.Errorf("%d frames, %d pages left", f.pending.len(), f.pages)
	}
}

func TestFlowHeads(t *testing.T) {
	f := &flow{irsKnown: true}
	for _, c := range []struct{ first, n, pos, want int }{
		{-100, 50, 0, 0}, {-50, 50, 0, 0}, {-10, 30, 0, 20}, {30, 5, 29, 0}, {30, 5, 31, 4},
	} {
		f.keepLinear(uint32(c.first+1), c.n)
		n, ok := f.headAt(uint64(c.pos))
		if n != c.want || ok != (c.want > 0) {
			t.Errorf("%d bytes at %d: %d from %d on, %v", c.n, c.first, n, c.pos, ok)
		}
	}
	f.advance(35, nil)
	f.keepLinear(21, 15)
	if len(f.linear) != 0 {
		t.Errorf("of what was read: %v", f.linear)
	}
}

func TestLongestPacket(t *testing.T) {
	for mss, want := range map[int]int{0: writeSize, 1: writeSize, 1448: 45 * 1448, 8948: 7 * 8948, 40_000: 40_000,
		writeSize - 1: writeSize - 1, writeSize: writeSize, writeSize + 1: writeSize, 65483: writeSize} {
		f := flow{mss: mss}
		testkit.Equal(t, fmt.Sprintf("longest packet of segments of %d bytes", mss), f.longest(), want)
	}
}
