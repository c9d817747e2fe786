package virtq

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/testkit"
)

func TestLayout(t *testing.T) {
	for _, c := range []struct {
		size               uint16
		avail, used, total uint64
	}{
		{1, 0x1000, 0x2000, 0x3000},
		{256, 0x1000, 0x2000, 0x3000},
		{512, 0x2000, 0x3000, 0x5000},
		{1024, 0x4000, 0x5000, 0x8000},
		{32768, 0x80000, 0x91000, 0xd2000},
	} {
		desc, avail, used, total := Layout(c.size)
		if desc != 0 || avail != c.avail || used != c.used || total != c.total {
			t.Errorf("%d: %#x %#x %#x %#x", c.size, desc, avail, used, total)
		}
	}
}

func TestDriverRefusesBadMemory(t *testing.T) {
	g := newGuest(t)
	mem := g.ring(ringIOVA)
	for name, c := range map[string]DriverConfig{
		"size":             {Size: 3, Mem: mem, Addr: ringIOVA},
		"short":            {Size: 256, Mem: mem[:0x2fff], Addr: ringIOVA},
		"address aligned":  {Size: 256, Mem: mem, Addr: ringIOVA + 8},
		"memory aligned":   {Size: 256, Mem: mem[8:], Addr: ringIOVA},
		"wraps":            {Size: 256, Mem: mem, Addr: math.MaxUint64 - 0x2000 + 1},
		"indirect wraps":   {Size: 256, Mem: mem, Addr: ringIOVA, Indirect: mem[0x10000:], IndirectAddr: math.MaxUint64 - 15},
		"no memory at all": {Size: 256},
	} {
		testkit.ErrorIs(t, testkit.Err(NewDriver(c)), ErrBadRing, "%s", name)
	}
}

func TestAddLimits(t *testing.T) {
	for _, indirect := range []bool{false, true} {
		g := newGuest(t)
		d, dev := g.ends(t, 4, indirect, false)
		b := Buf{bufIOVA, 1}
		for _, c := range []struct {
			name    string
			out, in []Buf
		}{
			{"empty", nil, nil},
			{"longer than the ring", []Buf{b, b, b}, []Buf{b, b}},
			{"over 4 GiB", []Buf{{0, math.MaxUint32}}, []Buf{{0, 1}}},
			{"over 4 GiB out", []Buf{{0, math.MaxUint32}, b}, nil},
		} {
			if err := d.Add(c.out, c.in, 0); !errors.Is(err, ErrBadBuf) || errors.Is(err, ErrFull) {
				t.Errorf("%s: %v", c.name, err)
			}
		}
		want := 2 // chains of two descriptors that fit a ring of four
		if indirect {
			want = 4
		}
		n := 0
		for ; d.Add([]Buf{b}, []Buf{b}, 0) == nil; n++ {
		}
		if n != want || d.Free() != 0 {
			t.Errorf("indirect %v: %d chains, %d free", indirect, n, d.Free())
		}
		if err := d.Add([]Buf{b}, nil, 0); err != ErrFull {
			t.Errorf("full: %v", err)
		}
		var c Chain
		if ok, err := dev.Peek(&c); ok || err != nil {
			t.Errorf("not published, and seen: %v %v", ok, err)
		}
		if !d.Publish() || d.Publish() {
			t.Error("kick for nothing new")
		}
	}
}

// TestBadUsedIsAnError: Poll delivers the good elements before a false one.
//
// Invariant: virtq: A driver accepts no used element for a chain that it did not give to the device.
func TestBadUsedIsAnError(t *testing.T) {
	type element struct{ id, n uint32 }
	for _, c := range []struct {
		name     string
		idx      uint16
		elements []element
		good     int
		want     string
	}{
		{"idx too far", 3, nil, 0, "used.idx went from 0 to 3, in flight 2"},
		{"idx backwards", 0xffff, nil, 0, "from 0 to 65535"},
		{"id outside", 1, []element{{8, 0}}, 0, "element 0: id 8 of 8"},
		{"id far outside", 1, []element{{1 << 31, 0}}, 0, "id 2147483648 of 8"},
		{"id with high bits", 1, []element{{0x10000, 0}}, 0, "id 65536 of 8"},
		{"id twice", 2, []element{{0, 10}, {0, 10}}, 1, "element 1: id 0 is not in flight"},
		{"id free", 1, []element{{7, 0}}, 0, "id 7 is not in flight"},
		{"id not a head", 1, []element{{1, 0}}, 0, "id 1 is not in flight"},
		{"id not published", 2, []element{{2, 0}, {3, 0}}, 1, "id 3 is not in flight"},
		{"longer than its buffers", 1, []element{{0, 101}}, 0, "id 0: wrote 101 bytes into 100"},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := newGuest(t)
			d, _ := g.ends(t, 8, false, false)
			_, _, used := d.Addrs()
			b := Buf{bufIOVA, 50}
			for i, in := range [][]Buf{{b, b}, {b}} { // heads 0 (with 1) and 2
				testkit.OK(t, d.Add(nil, in, uint32(100+i)))
			}
			d.Publish()
			testkit.OK(t, d.Add(nil, []Buf{b}, 102)) // head 3, not shown to the device
			for i, e := range c.elements {
				le.PutUint32(g.ring(used+4+8*uint64(i)), e.id)
				le.PutUint32(g.ring(used+8+8*uint64(i)), e.n)
			}
			le.PutUint16(g.ring(used+2), c.idx)
			dst := make([]Used, 8)
			n, err := d.Poll(dst)
			if n != c.good || !errors.Is(err, ErrBadUsed) || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %d and %v, want %d and %q", n, err, c.good, c.want)
			}
			if n, again := d.Poll(dst); n != 0 || again != err || d.Err() != err {
				t.Errorf("not sticky: %d %v", n, again)
			}
			newGuest(t).echo(t)
		})
	}
}

// Some devices write a length for a chain they can only read: Poll returns 0.
func TestLengthOfWhatIsOnlyReadIsIgnored(t *testing.T) {
	g := newGuest(t)
	d, dev := g.ends(t, 4, false, false)
	testkit.OK(t, d.Add([]Buf{{bufIOVA, 10}}, nil, 7))
	d.Publish()
	g.inside(func() {
		var c Chain
		peek(t, dev, &c)
		dev.Commit(c.Head, 10)
		dev.Publish()
	})
	polls(t, d, Used{7, 0})
}

// TestRingGoesOnAfterReconnect: a new Device goes on where the one before stopped.
func TestRingGoesOnAfterReconnect(t *testing.T) {
	for _, event := range []bool{false, true} {
		t.Run(fmt.Sprintf("event=%v", event), func(t *testing.T) { reconnect(t, event) })
	}
}

func reconnect(t *testing.T, event bool) {
	g := newGuest(t)
	d, dev := g.ends(t, 4, true, event)
	var c Chain
	desc, avail, used := d.Addrs()
	for round := range uint32(70_000) { // more than 65536 chains, so that the indices wrap
		again := round%10_000 == 0
		if again {
			dev.DisableKick()
			base := dev.Base()
			dev.Close()
			var err error
			dev, err = NewDevice(g.space, Config{Size: 4, Desc: desc, Avail: avail, Used: used, Base: base,
				Indirect: true, EventIdx: event})
			testkit.OK(t, err)
		}
		testkit.OK(t, d.Add([]Buf{{bufIOVA, 10}}, []Buf{{seamIOVA, 1}}, round))
		if kick := d.Publish(); again && !kick {
			t.Fatalf("round %d: the kick that starts the ring is missing", round)
		}
		tok := g.space.Enter()
		peek(t, dev, &c)
		g.space.Leave(tok)
		dev.Commit(c.Head, 1)
		dev.Publish()
		polls(t, d, Used{round, 1})
	}
	dev.Close()
}

// TestRepinFollowsTheMemory: the space maps other memory at the ring's addresses.
func TestRepinFollowsTheMemory(t *testing.T) {
	g, other := newGuest(t), newGuest(t)
	d, dev := g.ends(t, 4, false, true)
	var c Chain
	step := func(cookie uint32) {
		t.Helper()
		testkit.OK(t, d.Add([]Buf{{bufIOVA, 10}}, nil, cookie))
		d.Publish()
		g.inside(func() { peek(t, dev, &c) })
		dev.Commit(c.Head, 0)
		dev.Publish()
		polls(t, d, Used{cookie, 0})
	}
	step(1)
	copy(other.mem, g.mem)
	testkit.OK(t, g.space.Replace(other.maps()))
	testkit.OK(t, dev.Repin())
	clear(g.mem) // after Repin the device must not read the old memory
	desc, avail, used := d.Addrs()
	testkit.OK(t, d.ring.init(4, true, other.ring(desc), other.ring(avail), other.ring(used)))
	step(2)
	if n := g.files.Len(); n != 1 {
		t.Errorf("%d files held", n)
	}
	testkit.OK(t, g.space.Remove(ringIOVA, mib))
	if err := dev.Repin(); !errors.Is(err, ErrBadRing) || !errors.Is(err, dma.ErrUnmapped) {
		t.Fatalf("ring memory is gone: %v", err)
	}
	dev.Close()
	testkit.ErrorIs(t, dev.Repin(), ErrMisuse, "closed")
	g.space.Close()
	if n := g.files.Len(); n != 0 {
		t.Errorf("%d files held", n)
	}
}
