package virtq

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/testkit"
)

// fuzzArea is the size of the memory that a fuzzed peer writes.
const fuzzArea = 1024

func fuzzConfig(shape, base byte) Config {
	size := uint16(1) << (shape & 7 % 5)
	c := Config{Size: size, Desc: ringIOVA, Base: BaseOf(uint32(uint16(int8(base)))), Indirect: shape&0x10 != 0,
		EventIdx: shape&0x20 != 0}
	c.Avail = c.Desc + descLen*uint64(size)
	if shape&0x40 != 0 {
		c.Avail += 2
	}
	c.Used = (c.Avail + uint64(availLen(int(size))) + 3) &^ 3
	return c
}

func fuzzRing(shape byte, idx uint16, ds ...desc) []byte {
	c := fuzzConfig(shape, 0)
	b := make([]byte, fuzzArea)
	for i, d := range ds {
		d.encode((*[descLen]byte)(b[i*descLen:]))
	}
	avail := b[c.Avail-ringIOVA:]
	le.PutUint16(avail[2:], idx)
	for i := range int(c.Size) {
		le.PutUint16(avail[4+2*i:], uint16(i))
	}
	return b
}

// FuzzDescriptorWalk plays a hostile driver: shape and base give the Config; mem is ring memory; ops are
// operations of the device's owner, and the guest's writes between them.
//
// Invariant: virtq: A bad chain that is peeked stops its queue, and another queue goes on moving bytes.
func FuzzDescriptorWalk(f *testing.F) {
	peekAll := []byte{0, 0, 0, 0, 0, 0, 0, 0, 4, 2, 0, 3, 0, 5, 7}
	buf := desc{addr: bufIOVA, len: 100, flags: flagNext, next: 1}
	in := desc{addr: seamIOVA - 50, len: 100, flags: flagWrite}
	f.Add(byte(3), byte(0), fuzzRing(3, 1, buf, in), peekAll)
	f.Add(byte(0x43), byte(0), fuzzRing(0x43, 8, buf, in, in), peekAll)
	f.Add(byte(0x23), byte(0), fuzzRing(0x23, 1, desc{addr: bufIOVA, len: 1, flags: flagNext, next: 0}), peekAll)
	f.Add(byte(0x13), byte(0), fuzzRing(0x13, 2,
		desc{addr: ringIOVA + 64, len: 32, flags: flagIndirect}, desc{addr: seamIOVA - 8, len: 16, flags: flagIndirect}, in,
		in, buf, in), peekAll)
	f.Add(byte(0x13), byte(0), fuzzRing(0x13, 1, desc{addr: ringIOVA, len: 16, flags: flagIndirect}), peekAll)
	f.Add(byte(0x33), byte(0xff), fuzzRing(0x33, 2, in, in), peekAll)
	f.Add(byte(3), byte(0), fuzzRing(3, 1, desc{addr: roIOVA, len: 16, flags: flagWrite}), peekAll)
	f.Add(byte(3), byte(0), fuzzRing(3, 1, desc{addr: endIOVA - 1, len: 2}), peekAll)
	f.Add(byte(3), byte(0), fuzzRing(3, 0xffff), peekAll)
	g := newGuest(f)
	f.Fuzz(func(t *testing.T, shape, base byte, mem, ops []byte) {
		area := g.ring(ringIOVA)[:fuzzArea]
		clear(area)
		copy(area, mem)
		g.write(seamIOVA-fuzzArea/2, area) // indirect tables may lie around the seam
		conf := fuzzConfig(shape, base)
		q := testkit.Must(NewDevice(g.space, conf))(t)
		defer q.Close()
		w := &owner{t: t, q: q, conf: conf}
		g.inside(func() {
			for len(ops) > 0 {
				op := ops[0]
				ops = ops[1:]
				if op >= 128 && len(ops) >= 2 { // the guest writes a byte
					area[(int(op)<<8|int(ops[0]))%fuzzArea] = ops[1]
					ops = ops[2:]
					continue
				}
				w.do(op)
			}
			for n := 0; w.peek(); n++ {
				if n > int(conf.Size) {
					t.Fatalf("%d chains from a ring of %d", n, conf.Size)
				}
			}
		})
	})
}

// owner uses a Device by the rules.
type owner struct {
	t    *testing.T
	q    *Device
	conf Config
	c    Chain
	held []uint16 // in order of Peek
	run  int
}

func (w *owner) do(op byte) {
	switch op % 8 {
	case 0, 6:
		w.peek()
	case 1:
		if len(w.held) > 0 {
			if err := w.q.Load(w.held[int(op/8)%len(w.held)], &w.c); err == nil {
				w.check()
			}
		}
	case 2:
		if n := len(w.held); n > 0 {
			i := int(op/8) % n
			w.q.Commit(w.held[i], 1)
			w.run = min(w.run, n-1-i)
			w.held = slices.Delete(w.held, i, i+1)
		}
	case 3:
		n := int(op/8) % (w.run + 1)
		w.q.Rewind(n)
		w.run -= n
		w.held = w.held[:len(w.held)-n]
	case 4:
		w.q.Publish()
	case 5:
		w.q.EnableKick()
	case 7:
		w.q.DisableKick()
		w.q.Pending()
		if op >= 64 { // held chains can then no longer be rewound
			if n, _ := w.q.ReturnUnused(int(op-64) / 8); n > 0 {
				w.run = 0
			}
		}
	}
	if err := w.q.Err(); err != nil && !errors.Is(err, ErrBadChain) {
		w.t.Fatalf("not a bad chain: %v", err)
	}
}

func (w *owner) peek() bool {
	ok, err := w.q.Peek(&w.c)
	if err != nil && (ok || !errors.Is(err, ErrBadChain) || w.q.Err() != err) {
		w.t.Fatalf("%v: %v", ok, err)
	}
	if ok {
		if slices.Contains(w.held, w.c.Head) {
			w.t.Fatalf("head %d twice", w.c.Head)
		}
		w.held = append(w.held, w.c.Head)
		w.run++
		w.check()
	}
	return ok
}

func (w *owner) check() {
	c := &w.c
	if c.Head >= w.conf.Size {
		w.t.Fatalf("head %d of %d", c.Head, w.conf.Size)
	}
	if dma.Len(c.Out) != uint64(c.OutLen) || dma.Len(c.In) != uint64(c.InLen) ||
		uint64(c.OutLen)+uint64(c.InLen) > 1<<32-1 {
		w.t.Fatalf("lengths %d %d of %v %v", c.OutLen, c.InLen, c.Out, c.In)
	}
	inside(w.t, c.Out, false)
	inside(w.t, c.In, true)
}

func inside(t *testing.T, segs []dma.Segment, write bool) {
	for _, s := range segs {
		if s.Off > s.Region.Size() || uint64(s.Len) > s.Region.Size()-s.Off || s.Len == 0 {
			t.Fatalf("segment %#x+%#x of a region of %#x", s.Off, s.Len, s.Region.Size())
		}
		from := s.Region.IOVA() + s.Off
		to := from + uint64(s.Len)
		rw := from >= ringIOVA && to <= endIOVA
		ro := from >= roIOVA && to <= roIOVA+pageLen
		if !rw && (!ro || write) {
			t.Fatalf("segment [%#x, %#x), write %v", from, to, write)
		}
	}
}

// TestChainIsReadOnce: a guest rewrites the ring while the device walks it.
//
// Invariant: virtq: Ring memory is read once, then checked.
func TestChainIsReadOnce(t *testing.T) {
	g := newGuest(t)
	r := newRaw(g, rawConfig)
	const tableIOVA = bufIOVA + 0x8000
	good := []desc{{addr: bufIOVA, len: 100, flags: flagNext, next: 1}, {addr: seamIOVA - 4, len: 8, flags: flagWrite}}
	evil := []desc{{addr: endIOVA - 50, len: 100, flags: flagWrite | flagNext, next: 9},
		{addr: 1 << 63, len: 1 << 31, flags: flagIndirect}}
	var stop atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; !stop.Load(); i++ {
			ds := [][]desc{good, evil}[i&1]
			for k, d := range ds {
				r.desc(k, d)
			}
			r.desc(2, desc{addr: tableIOVA, len: 32, flags: flagIndirect})
			r.table(tableIOVA, ds...)
			r.entry(0, []uint16{0, 2, 8, 2}[i&3])
		}
	})
	r.idx(1)
	good1, bad1 := 0, 0
	for range 20_000 {
		q := testkit.Must(NewDevice(g.space, r.conf))(t)
		w := &owner{t: t, q: q, conf: r.conf}
		g.inside(func() {
			if w.peek() {
				good1++
			} else {
				bad1++
			}
		})
		q.Close()
	}
	stop.Store(true)
	wg.Wait()
	t.Logf("%d chains, %d errors", good1, bad1)
	newGuest(t).echo(t)
}

// FuzzDriverPoll plays a hostile device: ops are operations of the driver's owner, and writes to the used ring.
//
// Invariant: virtq: A driver accepts no used element for a chain that it did not give to the device.
func FuzzDriverPoll(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 4, 4, 200, 2, 1, 5, 5})
	f.Add([]byte{3, 3, 4, 200, 4, 0, 200, 12, 1, 200, 2, 2, 5, 5})
	f.Add([]byte{3, 4, 200, 4, 9, 200, 2, 1, 5})
	f.Add([]byte{3, 4, 200, 2, 9, 5, 200, 2, 0, 5})
	g := newGuest(f)
	f.Fuzz(func(t *testing.T, ops []byte) {
		const size = 8
		d, dev := g.ends(t, size, len(ops)%2 == 0, len(ops)%4 < 2)
		dev.Close()
		_, _, usedIOVA := d.Addrs()
		used := g.ring(usedIOVA)[:usedLen(size)]
		type sent struct{ descs, in int }
		flying := map[uint32]sent{}
		cookie := uint32(0)
		dst := make([]Used, 3)
		for len(ops) > 0 {
			op := ops[0]
			ops = ops[1:]
			switch {
			case op >= 128 && len(ops) >= 2:
				used[int(ops[0])%len(used)] = ops[1]
				ops = ops[2:]
				continue
			case op%8 < 4:
				bufs := []Buf{{bufIOVA, 10}, {bufIOVA, 20}, {bufIOVA, 30}}
				out, in := bufs[:op%2], bufs[:op/2%4]
				free := d.Free()
				if err := d.Add(out, in, cookie); err == nil {
					flying[cookie] = sent{free - d.Free(), int(total(in))}
					cookie++
				}
			case op%8 == 4:
				d.Publish()
			case op%8 == 5:
				n, err := d.Poll(dst)
				if err != nil && !errors.Is(err, ErrBadUsed) {
					t.Fatal(err)
				}
				for _, u := range dst[:n] {
					s, ok := flying[u.Cookie]
					if !ok || int(u.Len) > s.in {
						t.Fatalf("cookie %d, %d bytes: %v %+v", u.Cookie, u.Len, ok, s)
					}
					delete(flying, u.Cookie)
				}
			case op%8 == 6:
				d.EnableCall()
			case op%8 == 7:
				d.DisableCall()
			}
			free := size
			for _, s := range flying {
				free -= s.descs
			}
			if d.Free() != free {
				t.Fatalf("%d free, want %d", d.Free(), free)
			}
		}
	})
}
