package virtq

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/testkit"
)

// TestRingIsAModelOfItself compares both ends with a model of a ring.
func TestRingIsAModelOfItself(t *testing.T) {
	g := newGuest(t)
	rapid.Check(t, func(t *rapid.T) {
		m := newModel(t, g)
		defer m.dev.Close()
		t.Repeat(map[string]func(*rapid.T){
			"":              m.check,
			"add":           m.add,
			"publish":       m.publish,
			"peek":          m.peek,
			"rewind":        m.rewind,
			"load":          m.load,
			"commit":        m.commit,
			"return unused": m.returnUnused,
			"publish used":  m.publishUsed,
			"poll":          m.poll,
			"kick":          m.kick,
			"call":          m.call,
		})
	})
}

type modelChain struct {
	out, in []Buf
	cookie  uint32
	descs   int
	head    uint16 // set once it is held
}

// model has both ends and their expected state.
type model struct {
	g   *guest
	dr  *Driver
	dev *Device

	size, perTable         int
	added, avail, held     []modelChain
	staged, used           []Used
	cookies                uint32
	free                   int
	base                   int
	shown, usedShown       int // chains and used elements published
	peeked, polled         int
	event                  bool
	kickAt, callAt         int // with event: the entries at these indices cause a kick or call
	kicksOff, callsOff     bool
	stagedDescs, usedDescs []int
}

func newModel(t *rapid.T, g *guest) *model {
	size := 1 << rapid.IntRange(0, 6).Draw(t, "log size")
	event := rapid.Bool().Draw(t, "event index")
	base := rapid.SampledFrom([]int{0, 65530, 32760}).Draw(t, "base")
	c := DriverConfig{Size: uint16(size), Mem: g.ring(ringIOVA), Addr: ringIOVA, EventIdx: event}
	perTable := rapid.SampledFrom([]int{0, 2, 5, 100}).Draw(t, "indirect table")
	if perTable > 0 {
		c.IndirectAddr = ringIOVA + 0x10000
		c.Indirect = g.ring(c.IndirectAddr)[:perTable*size*descLen]
	}
	dr := testkit.Must(NewDriver(c))(t)
	desc, avail, used := dr.Addrs()
	dr.added, dr.shown, dr.polled, dr.seen = uint64(base), uint64(base), uint64(base), uint16(base)
	le.PutUint16(g.ring(avail+2), uint16(base))
	le.PutUint16(g.ring(used+2), uint16(base))
	dev, err := NewDevice(g.space, Config{Size: uint16(size), Desc: desc, Avail: avail, Used: used,
		Base: BaseOf(uint32(uint16(base))), Indirect: perTable > 0, EventIdx: event})
	testkit.OK(t, err)
	m := &model{g: g, dr: dr, dev: dev, size: size, perTable: min(perTable, size), free: size, base: base, event: event}
	m.kick(t)
	m.call(t)
	return m
}

func (m *model) bufs(t *rapid.T, name string) []Buf {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Buf {
		n := rapid.Uint32Range(0, 5000).Draw(t, "len")
		from := rapid.SampledFrom([]uint64{bufIOVA, seamIOVA - 2500, endIOVA - 10000}).Draw(t, "near")
		return Buf{from + rapid.Uint64Range(0, 5000).Draw(t, "off"), n}
	}), 0, 4).Draw(t, name)
}

func (m *model) add(t *rapid.T) {
	c := modelChain{out: m.bufs(t, "out"), in: m.bufs(t, "in"), cookie: m.cookies}
	n := len(c.out) + len(c.in)
	c.descs = n
	if n > 1 && n <= m.perTable {
		c.descs = 1
	}
	err := m.dr.Add(c.out, c.in, c.cookie)
	switch {
	case n == 0 || n > m.size:
		if err == nil || err == ErrFull {
			t.Fatalf("add of %d descriptors: %v", n, err)
		}
	case c.descs > m.free:
		if err != ErrFull {
			t.Fatalf("add of %d with %d free: %v", c.descs, m.free, err)
		}
	default:
		testkit.OK(t, err)
		m.free -= c.descs
		m.cookies++
		m.added = append(m.added, c)
	}
}

// signal reports whether the other end wants an event when an index goes from was to now.
func (m *model) signal(was, now, event int, off bool) bool {
	if m.event {
		return was <= event && event < now
	}
	return now != was && !off
}

func (m *model) publish(t *rapid.T) {
	was := m.shown
	m.shown += len(m.added)
	testkit.Equal(t, "kick", m.dr.Publish(), m.signal(was, m.shown, m.kickAt, m.kicksOff))
	m.avail = append(m.avail, m.added...)
	m.added = nil
}

func (m *model) peek(t *rapid.T) {
	tok := m.g.space.Enter()
	defer m.g.space.Leave(tok)
	var c Chain
	ok, err := m.dev.Peek(&c)
	if err != nil || ok != (len(m.avail) > 0) {
		t.Fatalf("peek: %v %v with %d available", ok, err, len(m.avail))
	}
	if !ok {
		return
	}
	want := m.avail[0]
	want.head = c.Head
	m.same(t, &c, &want)
	m.avail = m.avail[1:]
	m.held = append(m.held, want)
	m.peeked++
}

func (m *model) same(t *rapid.T, c *Chain, want *modelChain) {
	if err := same(m.g, c.Out, c.OutLen, want.out); err != nil {
		t.Fatalf("out: %v", err)
	}
	if err := same(m.g, c.In, c.InLen, want.in); err != nil {
		t.Fatalf("in: %v", err)
	}
	first := uint32(0)
	if i := slices.IndexFunc(want.in, func(b Buf) bool { return b.Len > 0 }); i >= 0 {
		first = want.in[i].Len
	}
	empty := 0
	for _, b := range slices.Concat(want.out, want.in) {
		if b.Len == 0 {
			empty++
		}
	}
	testkit.Equal(t, "empty buffers", c.Empty, empty)
	if c.InFirst != first {
		t.Fatalf("first writable buffer is %d bytes, want %d", c.InFirst, first)
	}
}

// rewind rewinds a random number of the chains peeked last. A chain that was committed, or returned
// unused, leaves a gap in the cookies: Rewind must not pass it.
func (m *model) rewind(t *rapid.T) {
	n := 0
	next := m.cookies - uint32(len(m.added)) - uint32(len(m.avail)) // cookie of the chain that is peeked next
	for n < len(m.held) && m.held[len(m.held)-1-n].cookie == next-1-uint32(n) {
		n++
	}
	n = rapid.IntRange(0, n).Draw(t, "n")
	m.dev.Rewind(n)
	first := len(m.held) - n
	m.avail = append(slices.Clone(m.held[first:]), m.avail...)
	m.held = m.held[:first]
	m.peeked -= n
}

func (m *model) load(t *rapid.T) {
	if len(m.held) == 0 {
		return
	}
	want := rapid.SampledFrom(m.held).Draw(t, "chain")
	tok := m.g.space.Enter()
	defer m.g.space.Leave(tok)
	var c Chain
	testkit.OK(t, m.dev.Load(want.head, &c))
	m.same(t, &c, &want)
}

func (m *model) commit(t *rapid.T) {
	if len(m.held) == 0 {
		return
	}
	i := rapid.IntRange(0, len(m.held)-1).Draw(t, "held")
	c := m.held[i]
	n := rapid.Uint32Range(0, uint32(total(c.in))).Draw(t, "written")
	m.dev.Commit(c.head, n)
	m.held = slices.Delete(slices.Clone(m.held), i, i+1)
	m.staged = append(m.staged, Used{c.cookie, n})
	m.stagedDescs = append(m.stagedDescs, c.descs)
}

func (m *model) returnUnused(t *rapid.T) {
	n := rapid.IntRange(0, m.size).Draw(t, "n")
	want := min(n, len(m.avail))
	if got, err := m.dev.ReturnUnused(n); got != want || err != nil {
		t.Fatalf("returned %d of %d, with %d available: %v", got, n, len(m.avail), err)
	}
	for _, c := range m.avail[:want] {
		m.staged = append(m.staged, Used{c.cookie, 0})
		m.stagedDescs = append(m.stagedDescs, c.descs)
	}
	m.avail = m.avail[want:]
	m.peeked += want
}

func (m *model) publishUsed(t *rapid.T) {
	was := m.usedShown
	m.usedShown += len(m.staged)
	testkit.Equal(t, "call", m.dev.Publish(), m.signal(was, m.usedShown, m.callAt, m.callsOff))
	m.used = append(m.used, m.staged...)
	m.usedDescs = append(m.usedDescs, m.stagedDescs...)
	m.staged, m.stagedDescs = nil, nil
}

func (m *model) poll(t *rapid.T) {
	dst := make([]Used, rapid.IntRange(0, 5).Draw(t, "room"))
	n, err := m.dr.Poll(dst)
	if err != nil || n != min(len(dst), len(m.used)) || !slices.Equal(dst[:n], m.used[:n]) {
		t.Fatalf("poll: %d %v %v, want %v", n, err, dst[:n], m.used)
	}
	for _, d := range m.usedDescs[:n] {
		m.free += d
	}
	m.used, m.usedDescs = m.used[n:], m.usedDescs[n:]
	m.polled += n
}

func (m *model) kick(t *rapid.T) {
	if m.kicksOff = rapid.Bool().Draw(t, "no kicks"); m.kicksOff {
		m.dev.DisableKick()
		m.kickAt = m.peeked - 1
		return
	}
	n := rapid.SampledFrom([]int{0, 0, 1, 3, m.size}).Draw(t, "beyond")
	enable := m.dev.EnableKick
	if n > 0 {
		enable = func() bool { return m.dev.EnableKickBeyond(n) }
	}
	testkit.Equal(t, fmt.Sprintf("with %d available: more than %d", len(m.avail), n), enable(), len(m.avail) > n)
	m.kickAt = m.peeked + n
}

func (m *model) call(t *rapid.T) {
	if m.callsOff = rapid.Bool().Draw(t, "no calls"); m.callsOff {
		m.dr.DisableCall()
		m.callAt = m.polled - 1
		return
	}
	testkit.Equal(t, "more used", m.dr.EnableCall(), len(m.used) > 0)
	m.callAt = m.polled
}

func (m *model) check(t *rapid.T) {
	testkit.Equal(t, "free", m.dr.Free(), m.free)
	testkit.Equal(t, "base", m.dev.Base().State(), uint32(uint16(m.base+m.peeked)))
	testkit.Equal(t, "held", m.dev.Held(), len(m.held))
	testkit.Equal(t, "pending", m.dev.Pending(), len(m.avail) > 0)
	testkit.Equal(t, "available", m.dev.Available(), len(m.avail))
	if m.dev.Err() != nil || m.dr.Err() != nil {
		t.Fatal(m.dev.Err(), m.dr.Err())
	}
}

func TestSegmentsReachTheirBytes(t *testing.T) {
	g := newGuest(t)
	rapid.Check(t, func(t *rapid.T) {
		dr := testkit.Must(NewDriver(DriverConfig{Size: 8, Mem: g.ring(ringIOVA), Addr: ringIOVA}))(t)
		desc, avail, used := dr.Addrs()
		dev := testkit.Must(NewDevice(g.space, Config{Size: 8, Desc: desc, Avail: avail, Used: used}))(t)
		defer dev.Close()
		data := rapid.SliceOfN(rapid.Byte(), 1, 300).Draw(t, "data")
		// out and in have the length of data, each cut at random; out begins before the seam, in behind it
		cut := func(addr uint64, name string) (bufs []Buf) {
			left := len(data)
			for k := range 4 {
				n := left
				if k < 3 {
					n = rapid.IntRange(0, left).Draw(t, name)
				}
				bufs = append(bufs, Buf{addr, uint32(n)})
				addr += uint64(n) + 5
				left -= n
			}
			return bufs
		}
		out, in := cut(seamIOVA-200, "out"), cut(seamIOVA+5000, "in")
		rest := data
		for _, b := range out {
			g.write(b.Addr, rest[:b.Len])
			rest = rest[b.Len:]
		}
		testkit.OK(t, dr.Add(out, in, 1))
		dr.Publish()
		tok := g.space.Enter()
		defer g.space.Leave(tok)
		var c Chain
		peek(t, dev, &c)
		n, err := dma.NewCopier().Copy(c.In, c.Out)
		if err != nil || n != uint64(len(data)) {
			t.Fatal(n, err)
		}
		var got []byte
		for _, b := range in {
			got = append(got, g.buffer(b.Addr, int(b.Len))...)
		}
		if !slices.Equal(got, data) {
			t.Fatalf("got %x, want %x", got, data)
		}
	})
}
