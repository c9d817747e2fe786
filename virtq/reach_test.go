package virtq

import (
	"errors"
	"math"
	"strings"
	"testing"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/testkit"
)

// TestChainOutOfReachIsTakenWithoutBuffers: each case has a chain out of the device's reach between two good
// ones.
//
// Invariant: virtq: A chain in memory that the device cannot reach is given back, and its queue goes on.
func TestChainOutOfReachIsTakenWithoutBuffers(t *testing.T) {
	const tableIOVA = bufIOVA + 0x8000
	buf := desc{addr: bufIOVA, len: 16}
	with := func(d desc, flags, next uint16) desc { d.flags |= flags; d.next = next; return d }
	for _, c := range []struct {
		name   string
		make   func(r *raw)
		want   string
		target error
	}{
		{"unmapped", func(r *raw) { r.desc(3, desc{addr: endIOVA + mib/2, len: 1}) },
			"head 3: descriptor 3: buffer at 0x480000, 1 bytes: ", dma.ErrUnmapped},
		{"past the end", func(r *raw) { r.desc(3, desc{addr: endIOVA - 15, len: 16}) }, "buffer at 0x3ffff1",
			dma.ErrUnmapped},
		{"before the beginning", func(r *raw) { r.desc(3, desc{addr: ringIOVA - 1, len: 16}) }, "buffer at 0xfffff",
			dma.ErrUnmapped},
		{"wraps around", func(r *raw) { r.desc(3, desc{addr: math.MaxUint64 - 7, len: 16}) }, "buffer at 0xfffffffffffffff8",
			dma.ErrUnmapped},
		{"write to read-only", func(r *raw) { r.desc(3, desc{addr: roIOVA, len: 16, flags: flagWrite}) },
			"buffer at 0x500000", dma.ErrAccess},
		{"second buffer unmapped", func(r *raw) {
			r.desc(3, with(buf, flagNext, 4))
			r.desc(4, desc{addr: 0, len: 1})
		}, "descriptor 4: buffer at 0x0, 1 bytes", dma.ErrUnmapped},
		{"writable behind readable", func(r *raw) {
			r.desc(3, with(buf, flagNext, 4))
			r.desc(4, desc{addr: 0, len: 1, flags: flagWrite})
		}, "descriptor 4: buffer at 0x0, 1 bytes", dma.ErrUnmapped},
		{"indirect table unmapped", func(r *raw) {
			r.desc(3, desc{addr: endIOVA - 16, len: 32, flags: flagIndirect})
		}, "indirect table at 0x3ffff0, 32 bytes", dma.ErrUnmapped},
		{"buffer in an indirect table unmapped", func(r *raw) {
			r.table(tableIOVA, with(buf, flagNext, 1), desc{addr: 0, len: 1})
			r.desc(3, desc{addr: tableIOVA, len: 2 * descLen, flags: flagIndirect})
		}, "head 3: descriptor 1: buffer at 0x0", dma.ErrUnmapped},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := newGuest(t)
			r := newRaw(g, rawConfig)
			r.desc(0, buf)
			r.desc(7, buf)
			for i, head := range []uint16{0, 3, 7} {
				r.entry(i, head)
			}
			r.idx(3)
			c.make(r)
			q := r.device(t)
			chains := make([]Chain, 4)
			faulty := &chains[1]
			g.inside(func() {
				n, err := q.PeekBatch(chains)
				testkit.OK(t, err)
				testkit.Equal(t, "chains", n, 3)
				testkit.OK(t, q.Load(3, faulty))
			})
			if !errors.Is(faulty.Fault, c.target) || errors.Is(faulty.Fault, ErrBadChain) ||
				!strings.Contains(faulty.Fault.Error(), c.want) {
				t.Fatalf("got %v, want %q", faulty.Fault, c.want)
			}
			if len(faulty.Out)+len(faulty.In)+faulty.Empty != 0 || faulty.OutLen+faulty.InLen+faulty.InFirst != 0 {
				t.Errorf("it has buffers: %+v", faulty)
			}
			g.inside(func() {
				n := testing.AllocsPerRun(100, func() { _ = q.Load(3, faulty) })
				if most := 4.0; n > most && !raceEnabled {
					t.Errorf("it costs %v allocations, more than %v", n, most)
				}
			})
			for i, head := range []uint16{0, 3, 7} {
				if c := &chains[i]; c.Head != head || (c.Fault != nil) != (i == 1) || i != 1 && c.OutLen != 16 {
					t.Errorf("chain %d: %+v", i, c)
				}
				q.Commit(head, 0)
			}
			if q.Publish(); r.usedIdx() != 3 || q.Err() != nil {
				t.Errorf("used.idx is %d: %v", r.usedIdx(), q.Err())
			}
			r.desc(3, buf) // the same Chain again, now for a chain that can be reached
			r.entry(3, 3)
			r.idx(4)
			g.inside(func() {
				if ok, err := q.Peek(faulty); !ok || err != nil || faulty.Fault != nil || faulty.OutLen != 16 {
					t.Errorf("then: %v, %v, %+v", ok, err, faulty)
				}
			})
		})
	}
}

// A chain that is made available again while the device holds it stops the queue, also if it is out of reach.
func TestChainOutOfReachIsNotTakenTwice(t *testing.T) {
	g := newGuest(t)
	r := newRaw(g, rawConfig)
	r.desc(3, desc{addr: 0, len: 1})
	r.entry(0, 3)
	r.entry(1, 3)
	r.idx(2)
	q := r.device(t)
	var c Chain
	g.inside(func() {
		if ok, err := q.Peek(&c); !ok || err != nil {
			t.Fatalf("the first: %v, %v", ok, err)
		}
		testkit.ErrorIs(t, testkit.Err(q.Peek(&c)), ErrBadChain, "the second")
	})
}
