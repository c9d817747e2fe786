package mailbox

import (
	"encoding/binary"
	"math"
	"slices"
	"syscall"
	"testing"
	"time"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/gpumem"
	"vnic.dev/vnic/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

var le = binary.LittleEndian

func page() []byte {
	b := make([]byte, Size)
	le.PutUint32(b, magic)
	le.PutUint32(b[atVersion:], version)
	le.PutUint32(b[atSlots:], Slots)
	le.PutUint32(b[atAck:], 250)
	return b
}

func ask(b []byte, r Request) {
	s := b[fieldOff(r.Slot, 0):]
	le.PutUint32(s[atRegion:], r.Region)
	le.PutUint64(s[atFirst:], r.First)
	le.PutUint64(s[atPages:], r.Pages)
	le.PutUint32(s[atGeneration:], r.Generation)
	le.PutUint32(s[atReason:], r.Reason)
	le.PutUint64(s[atTag:], r.Tag)
	le.PutUint32(s, asked)
}

func poll(m *Mailbox) (list []Request) {
	m.Poll(func(r Request) { list = append(list, r) })
	return list
}

// opened returns a mailbox in a GPU's memory, and its page, as the driver sees it.
func opened(t *testing.T) (*Mailbox, []byte) {
	t.Helper()
	files := dma.NewFiles()
	testkit.CheckFDs(t)
	g := testkit.Must(gpumem.NewGPU(files, 1, 4*Size, gpumem.Options{}))(t)
	const off = 2 * Size
	pin := testkit.Must(g.Region().Pin(off, Size))(t)
	copy(pin.Bytes(), page())
	m := testkit.Must(Open(g, off))(t)
	t.Cleanup(func() {
		m.Close()
		m.Close()
		pin.Close()
		testkit.OK(t, g.Close())
		testkit.Equal(t, "files that are still mapped", files.Len(), 0)
	})
	return m, pin.Bytes()
}

// Invariant: gpumem: A mailbox is found at the offset that its driver names, and nowhere else.
func TestOnlyAMailboxIsOpened(t *testing.T) {
	files := dma.NewFiles()
	testkit.CheckFDs(t)
	g := testkit.Must(gpumem.NewGPU(files, 1, 4*Size, gpumem.Options{}))(t)
	defer func() {
		testkit.OK(t, g.Close())
		testkit.Equal(t, "files that are still mapped", files.Len(), 0)
	}()
	pin := testkit.Must(g.Region().Pin(0, 4*Size))(t)
	defer pin.Close()
	with := func(off int, v uint32) []byte {
		b := page()
		le.PutUint32(b[off:], v)
		return b
	}
	for name, c := range map[string]struct {
		off  uint64
		page []byte
		want error
	}{
		"nothing":                {Size, make([]byte, Size), ErrNone},
		"another version":        {Size, with(atVersion, 2), ErrNone},
		"another number of them": {Size, with(atSlots, 62), ErrNone},
		"behind the end":         {4 * Size, page(), dma.ErrBounds},
		"far behind the end":     {math.MaxUint64 - Size + 1, page(), dma.ErrBounds},
		"no page":                {Size + 8, page(), syscall.EINVAL},
		"one":                    {Size, page(), nil},
		"the last one":           {3 * Size, page(), nil},
	} {
		for off := 0; off < 4*Size; off += Size {
			copy(pin.Bytes()[off:], c.page)
		}
		m, err := Open(g, c.off)
		if c.want != nil {
			testkit.ErrorIs(t, err, c.want, name)
			continue
		}
		testkit.OK(t, err)
		testkit.Equal(t, name+": bound", m.Bound(), 250*time.Millisecond)
		m.Close()
	}
}

// Invariant: gpumem: Each request in a mailbox is reported once, and once more if the guest has
// given it up.
func TestRequestsAreToldOnce(t *testing.T) {
	m, b := opened(t)
	testkit.Equal(t, "of an empty one", len(poll(m)), 0)
	first := Request{Slot: 0, Region: 7, First: 1 << 33, Pages: 3, Generation: 9, Reason: Removed, Tag: 1 << 40}
	last := Request{Slot: Slots - 1, Region: 8, Pages: 1, Generation: 10, Reason: 2, Tag: 1<<40 + 1}
	ask(b, first)
	ask(b, last)
	for range 2 {
		want := []Request{first, last}
		testkit.Equal(t, "requests", slices.Equal(poll(m), want), true)
		testkit.Equal(t, "requests that were told", len(poll(m)), 0)
		// The guest uses the slots again, before a Poll.
		for i, r := range []*Request{&first, &last} {
			testkit.Equal(t, "done", m.Done(r.Slot), true)
			testkit.Equal(t, "done twice", m.Done(r.Slot), false)
			testkit.Equal(t, "freed, though it is not given up", m.Free(r.Slot), false)
			testkit.Equal(t, "its state", le.Uint32(b[fieldOff(r.Slot, atState):]), done)
			r.Tag += uint64(2 + i)
			ask(b, *r)
		}
	}
	testkit.Equal(t, "new requests", len(poll(m)), 2)

	le.PutUint32(b[fieldOff(first.Slot, atState):], givenUp)
	testkit.Equal(t, "done, as it is given up", m.Done(first.Slot), false)
	first.GivenUp = true
	testkit.Equal(t, "what is given up is told", slices.Equal(poll(m), []Request{first}), true)
	testkit.Equal(t, "... once", len(poll(m)), 0)
	testkit.Equal(t, "free", m.Free(first.Slot), true)
	testkit.Equal(t, "its state", le.Uint32(b[fieldOff(first.Slot, atState):]), free)
	first.GivenUp = false
	first.Tag++
	ask(b, first)
	testkit.Equal(t, "it is used again", slices.Equal(poll(m), []Request{first}), true)

	le.PutUint32(b[atLost:], 3)
	testkit.Equal(t, "lost", m.Lost(), 3)
	le.PutUint32(b, 0)
	first.Tag++
	ask(b, first)
	testkit.Equal(t, "alive", m.Alive(), false)
	testkit.Equal(t, "of one that was taken away", len(poll(m)), 0)
}

func TestPollAllocatesNothing(t *testing.T) {
	m, b := opened(t)
	tag := uint64(0)
	n := 0
	testkit.Equal(t, "allocations", testing.AllocsPerRun(100, func() {
		for i := range Slots {
			tag++
			ask(b, Request{Slot: i, Tag: tag})
		}
		m.Poll(func(r Request) {
			n++
			m.Done(r.Slot)
		})
	}), 0)
	testkit.Equal(t, "requests", n, 101*Slots)
}

// FuzzPage writes anything into a mailbox, as a guest may, and calls Poll, Done and Free.
func FuzzPage(f *testing.F) {
	good := page()
	ask(good, Request{Slot: 3, First: math.MaxUint64, Pages: math.MaxUint64, Tag: 1})
	f.Add(page(), good)
	f.Add(good, []byte{})
	f.Add([]byte{0x56, 0x47, 0x4d, 0x42, 1, 0, 0, 0, 63, 0, 0, 0}, good)
	f.Fuzz(func(t *testing.T, a, b []byte) {
		mem := make([]byte, Size)
		copy(mem, page())
		m := &Mailbox{mem: mem}
		for _, x := range [][]byte{a, b} {
			copy(mem, x)
			err := m.check()
			n := 0
			m.Poll(func(r Request) {
				if n++; r.Slot < 0 || r.Slot >= Slots || r.First+r.Pages < r.First {
					t.Errorf("%+v", r)
				}
				if done, freed := m.Done(r.Slot), m.Free(r.Slot); done == r.GivenUp || freed != r.GivenUp {
					t.Errorf("%+v: done %v, free %v", r, done, freed)
				}
			})
			if n > Slots || n > 0 && err != nil && le.Uint32(mem) != magic {
				t.Errorf("%d requests: %v", n, err)
			}
		}
	})
}
