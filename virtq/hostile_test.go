package virtq

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/testkit"
)

// TestBadChainStopsItsQueue: each case has a bad chain behind a good one, or an impossible avail.idx.
//
// Invariant: virtq: A bad chain that is peeked stops its queue, and another queue goes on moving bytes.
func TestBadChainStopsItsQueue(t *testing.T) {
	const tableIOVA = bufIOVA + 0x8000
	buf := desc{addr: bufIOVA, len: 16}
	table := func(n int) desc { return desc{addr: tableIOVA, len: uint32(n * descLen), flags: flagIndirect} }
	with := func(d desc, flags, next uint16) desc { d.flags |= flags; d.next = next; return d }
	for _, c := range []struct {
		name   string
		make   func(r *raw)
		want   string
		target error
	}{
		{"loop of one", func(r *raw) { r.desc(3, with(buf, flagNext, 3)) }, "head 3: descriptor 3: a loop", nil},
		{"loop of the whole table", func(r *raw) {
			for i := 1; i < 8; i++ {
				r.desc(i, with(buf, flagNext, uint16(i%7+1)))
			}
		}, "a loop, or more than 8 descriptors", nil},
		{"next outside", func(r *raw) { r.desc(3, with(buf, flagNext, 8)) }, "head 3: next descriptor is 8 of 8", nil},
		{"next far outside", func(r *raw) { r.desc(3, with(buf, flagNext, 0xffff)) }, "next descriptor is 65535 of 8", nil},
		{"head outside", func(r *raw) { r.entry(1, 8) }, "head 8: avail entry 1: ring of 8", nil},
		{"same head twice", func(r *raw) { r.entry(1, 0) }, "head 0: avail entry 1: made available again", nil},
		{"avail.idx too far", func(r *raw) { r.idx(9) }, "avail.idx went from 0 to 9, ring of 8", nil},
		{"avail.idx backwards", func(r *raw) { r.idx(0xffff) }, "avail.idx went from 0 to 65535", nil},
		{"readable after writable", func(r *raw) {
			r.desc(3, with(buf, flagNext|flagWrite, 4))
			r.desc(4, buf)
		}, "head 3: descriptor 4: a readable buffer follows a writable one", nil},
		{"readable after an empty writable", func(r *raw) {
			r.desc(3, desc{flags: flagNext | flagWrite, next: 4})
			r.desc(4, buf)
		}, "a readable buffer follows", nil},
		{"longer than 4 GiB", func(r *raw) {
			r.desc(3, with(buf, flagNext, 4))
			r.desc(4, desc{addr: bufIOVA, len: math.MaxUint32})
		}, "head 3: descriptor 4: 4294967311 bytes in all", nil},
		{"indirect and next", func(r *raw) { r.desc(3, with(table(1), flagNext, 4)) }, "indirect table with a next", nil},
		{"indirect table, not negotiated", func(r *raw) {
			r.conf.Indirect = false
			r.desc(3, table(1))
		}, "head 3: indirect table, not negotiated", nil},
		{"empty indirect table", func(r *raw) { r.desc(3, table(0)) }, "indirect table of 0 bytes", nil},
		{"ragged indirect table", func(r *raw) {
			r.desc(3, desc{addr: tableIOVA, len: 24, flags: flagIndirect})
		}, "indirect table of 24 bytes", nil},
		{"loop in a table longer than the ring", func(r *raw) {
			r.table(tableIOVA, with(buf, flagNext, 1), with(buf, flagNext, 0))
			r.desc(3, table(9))
		}, "descriptor 1: a loop, or more than 1024 descriptors", nil},
		{"indirect table that is too long", func(r *raw) { r.desc(3, table(MaxDescriptors+1)) },
			"indirect table of 1025 descriptors (at most 1024 are read)", nil},
		{"huge indirect table", func(r *raw) {
			r.desc(3, desc{addr: tableIOVA, len: 0xfffffff0, flags: flagIndirect})
		}, "indirect table of 268435455 descriptors", nil},
		{"nested table", func(r *raw) {
			r.table(tableIOVA, with(buf, flagNext, 1), table(1))
			r.desc(3, table(2))
		}, "head 3: descriptor 1: indirect table in an indirect table", nil},
		{"table that refers to itself", func(r *raw) {
			r.table(tableIOVA, table(1))
			r.desc(3, table(1))
		}, "descriptor 0: indirect table in an indirect table", nil},
		{"loop in a table", func(r *raw) {
			r.table(tableIOVA, with(buf, flagNext, 1), with(buf, flagNext, 0))
			r.desc(3, table(2))
		}, "descriptor 0: a loop", nil},
		{"next outside a table", func(r *raw) {
			r.table(tableIOVA, with(buf, flagNext, 2), buf)
			r.desc(3, table(2))
		}, "next descriptor is 2 of 2", nil},
		{"chain and table longer than a chain may be", func(r *raw) {
			r.desc(3, with(buf, flagNext, 4))
			r.desc(4, table(MaxDescriptors))
			r.linkTable(tableIOVA, MaxDescriptors, buf)
		}, "more than 1024 descriptors", nil},
		{"readable in a table after writable outside", func(r *raw) {
			r.desc(3, with(buf, flagNext|flagWrite, 4))
			r.desc(4, table(1))
			r.table(tableIOVA, buf)
		}, "a readable buffer follows", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := newGuest(t)
			r := newRaw(g, rawConfig)
			r.desc(0, buf)
			r.entry(0, 0)
			r.entry(1, 3)
			r.idx(2)
			c.make(r)
			q := r.device(t)
			var chain Chain
			var err error
			g.inside(func() {
				for ok := true; ok && err == nil; {
					ok, err = q.Peek(&chain)
				}
			})
			if !errors.Is(err, ErrBadChain) || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %v, want %q", err, c.want)
			}
			if c.target != nil && !errors.Is(err, c.target) {
				t.Errorf("%v is not %v", err, c.target)
			}
			if head, ok := BadHead(err); strings.Contains(err.Error(), "head 3") && (!ok || head != 3) {
				t.Errorf("BadHead: %d %v", head, ok)
			}
			g.inside(func() {
				if _, again := q.Peek(&chain); again != err || q.Err() != err || q.Load(0, &chain) != err {
					t.Errorf("not sticky: %v", again)
				}
			})
			if !q.Pending() || !q.EnableKick() || !q.EnableKickBeyond(5) {
				t.Error("a stopped queue must not let its worker sleep on it")
			}
			if base := q.Base(); base == BaseOf(1) {
				q.Commit(0, 0)
				if q.Publish(); r.usedIdx() != 1 {
					t.Errorf("used.idx is %d", r.usedIdx())
				}
			} else if base != BaseOf(0) {
				t.Errorf("base is %d", base.State())
			}
			q.Close()
			g.space.Close()
			if n := g.files.Len(); n != 0 {
				t.Errorf("%d files still held", n)
			}
			newGuest(t).echo(t)
		})
	}
}

// TestGoodChains has chains that look odd and are allowed.
func TestGoodChains(t *testing.T) {
	const tableIOVA = bufIOVA + 0x8000
	for _, c := range []struct {
		name            string
		make            func(r *raw)
		out, in         []Buf // where the segments must be, in the address space
		outSegs, inSegs int
	}{
		{"empty buffer, nowhere", func(r *raw) { r.desc(0, desc{addr: 1 << 60}) }, nil, nil, 0, 0},
		{"unknown flags", func(r *raw) { r.desc(0, desc{addr: bufIOVA, len: 8, flags: 0xfff8, next: 0xffff}) },
			[]Buf{{bufIOVA, 8}}, nil, 1, 0},
		{"reading what is read-only", func(r *raw) { r.desc(0, desc{addr: roIOVA, len: pageLen}) }, []Buf{{roIOVA, pageLen}},
			nil, 1, 0},
		{"across adjacent regions", func(r *raw) { r.desc(0, desc{addr: seamIOVA - 3, len: 8, flags: flagWrite}) },
			nil, []Buf{{seamIOVA - 3, 8}}, 0, 2},
		{"as long as the ring", func(r *raw) {
			for i := range 8 {
				d := desc{addr: bufIOVA + uint64(i)*100, len: 100}
				if i < 7 {
					d.flags, d.next = flagNext, uint16(i+1)
				}
				r.desc(i, d)
			}
		}, []Buf{{bufIOVA, 100}, {bufIOVA + 100, 100}, {bufIOVA + 200, 100}, {bufIOVA + 300, 100},
			{bufIOVA + 400, 100}, {bufIOVA + 500, 100}, {bufIOVA + 600, 100}, {bufIOVA + 700, 100}}, nil, 8, 0},
		{"table across regions, out of order, its own write flag ignored", func(r *raw) {
			r.desc(0, desc{addr: seamIOVA - 24, len: 4 * descLen, flags: flagIndirect | flagWrite})
			r.table(seamIOVA-24,
				desc{addr: bufIOVA, len: 1, flags: flagNext, next: 2},
				desc{addr: bufIOVA + 3, len: 4, flags: flagWrite, next: 77},
				desc{addr: bufIOVA + 1, len: 2, flags: flagNext, next: 1},
				desc{addr: 0, len: 99})
		}, []Buf{{bufIOVA, 1}, {bufIOVA + 1, 2}}, []Buf{{bufIOVA + 3, 4}}, 2, 1},
		{"table at the end of a chain", func(r *raw) {
			r.desc(0, desc{addr: bufIOVA, len: 10, flags: flagNext, next: 5})
			r.desc(5, desc{addr: tableIOVA, len: descLen, flags: flagIndirect})
			r.table(tableIOVA, desc{addr: bufIOVA + 10, len: 5, flags: flagWrite})
		}, []Buf{{bufIOVA, 10}}, []Buf{{bufIOVA + 10, 5}}, 1, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := newGuest(t)
			r := newRaw(g, rawConfig)
			c.make(r)
			r.offer(0)
			q := r.device(t)
			var chain Chain
			check := func() {
				t.Helper()
				if err := same(g, chain.Out, chain.OutLen, c.out); err != nil {
					t.Errorf("out: %v", err)
				}
				if err := same(g, chain.In, chain.InLen, c.in); err != nil {
					t.Errorf("in: %v", err)
				}
				if len(chain.Out) != c.outSegs || len(chain.In) != c.inSegs {
					t.Errorf("%d and %d segments", len(chain.Out), len(chain.In))
				}
			}
			g.inside(func() {
				peek(t, q, &chain)
				check()
				chain = Chain{}
				testkit.OK(t, q.Load(0, &chain))
				check()
				q.Rewind(1)
				peek(t, q, &chain)
				check()
			})
			q.Commit(chain.Head, 7)
			q.Publish()
			if id, n := r.used(0); r.usedIdx() != 1 || id != 0 || n != 7 {
				t.Errorf("used.idx %d, element %d of %d bytes", r.usedIdx(), id, n)
			}
		})
	}
}

// same returns an error unless segs are the memory of bufs, however cut into segments, and n is its length.
func same(g *guest, segs []dma.Segment, n uint32, bufs []Buf) error {
	var got, want []Buf
	join := func(bs []Buf, b Buf) []Buf {
		if k := len(bs) - 1; k >= 0 && bs[k].Addr+uint64(bs[k].Len) == b.Addr {
			bs[k].Len += b.Len
			return bs
		}
		return append(bs, b)
	}
	for _, s := range segs {
		if s.Off > s.Region.Size() || uint64(s.Len) > s.Region.Size()-s.Off {
			return fmt.Errorf("segment %+v of a region of %d bytes", s, s.Region.Size())
		}
		got = join(got, Buf{s.Region.IOVA() + s.Off, s.Len})
	}
	for _, b := range bufs {
		if b.Len != 0 {
			want = join(want, b)
		}
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		return fmt.Errorf("got %v, want %v", got, want)
	}
	if total(bufs) != uint64(n) || dma.Len(segs) != uint64(n) {
		return fmt.Errorf("length %d, segments %d, want %d", n, dma.Len(segs), total(bufs))
	}
	return nil
}

func TestDriverCannotHaveMoreOutThanTheRing(t *testing.T) {
	g := newGuest(t)
	r := newRaw(g, rawConfig)
	for i := range 8 {
		r.desc(i, desc{addr: bufIOVA, len: 1})
	}
	q := r.device(t)
	var c Chain
	g.inside(func() {
		r.offer(0, 1, 2, 3, 4, 5, 6, 7)
		for range 8 {
			peek(t, q, &c)
			q.Commit(c.Head, 0)
		}
		r.idx(9)
		if _, err := q.Peek(&c); !errors.Is(err, ErrBadChain) || !strings.Contains(err.Error(), "with 8 in use") {
			t.Fatal(err)
		}
	})
	g.echo(t)
}

func TestRingsThatAreRefused(t *testing.T) {
	for _, c := range []struct {
		name   string
		edit   func(c *Config)
		target error
	}{
		{"size 0", func(c *Config) { c.Size = 0 }, nil},
		{"size 6", func(c *Config) { c.Size = 6 }, nil},
		{"size 65535", func(c *Config) { c.Size = 65535 }, nil},
		{"size too large for its region", func(c *Config) { c.Size = 32768; c.Desc = ringIOVA + 0x90000 }, nil},
		{"odd avail", func(c *Config) { c.Avail++ }, nil},
		{"used at 2 mod 4", func(c *Config) { c.Used += 2 }, nil},
		{"desc at 8 mod 16", func(c *Config) { c.Desc += 8 }, nil},
		{"desc unmapped", func(c *Config) { c.Desc = 0 }, dma.ErrUnmapped},
		{"avail across regions", func(c *Config) { c.Avail = seamIOVA - 2 }, nil},
		{"used past the end", func(c *Config) { c.Used = endIOVA - 8 }, nil},
		{"used wraps around", func(c *Config) { c.Used = math.MaxUint64 - 3 }, dma.ErrUnmapped},
		{"used read-only", func(c *Config) { c.Used = roIOVA }, dma.ErrAccess},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := newGuest(t)
			conf := rawConfig
			c.edit(&conf)
			if _, err := NewDevice(g.space, conf); !errors.Is(err, ErrBadRing) || c.target != nil && !errors.Is(err, c.target) {
				t.Fatalf("got %v", err)
			}
			g.space.Close()
			if n := g.files.Len(); n != 0 {
				t.Fatalf("%d files still held", n)
			}
		})
	}
}

// TestRingInMisalignedMapping: only the memory is misaligned, not the guest's address. NewDevice refuses the ring.
func TestRingInMisalignedMapping(t *testing.T) {
	g := newGuest(t)
	for off := uint64(1); off < 4; off++ {
		iova := 0x1000_0000 * off
		if err := g.space.Add(dma.Map{IOVA: iova, Size: 0x8000, FD: g.fd, FileOffset: off}); err != nil {
			t.Skipf("dma refuses such a region: %v", err)
		}
		c := Config{Size: 8, Desc: iova, Avail: iova + 0x1000, Used: iova + 0x2000}
		testkit.ErrorIs(t, testkit.Err(NewDevice(g.space, c)), ErrBadRing, "offset %d", off)
	}
}

// TestTruncatedRingIsAnError: the file shrinks under the ring.
//
// Invariant: dma: Truncating a file is an error for the spaces that map it, and for no other space.
func TestTruncatedRingIsAnError(t *testing.T) {
	awake := func(more func(q *Device) bool) func(*Device, *Chain) error {
		return func(q *Device, _ *Chain) error {
			if !more(q) {
				return errors.New("the worker would sleep")
			}
			return q.Err()
		}
	}
	for name, touch := range map[string]func(q *Device, c *Chain) error{
		"peek":          func(q *Device, c *Chain) error { _, err := q.Peek(c); return err },
		"load":          func(q *Device, c *Chain) error { return q.Load(0, c) },
		"commit":        func(q *Device, c *Chain) error { q.Commit(0, 0); q.Publish(); return q.Err() },
		"enable":        awake((*Device).EnableKick),
		"enable beyond": awake(func(q *Device) bool { return q.EnableKickBeyond(3) }),
		"disable":       func(q *Device, c *Chain) error { q.DisableKick(); return q.Err() },
		"pending":       awake((*Device).Pending),
	} {
		t.Run(name, func(t *testing.T) {
			r := oneChain(t)
			g := r.g
			done := make(chan error, 1)
			dma.Go(func() {
				q, err := NewDevice(g.space, r.conf)
				if err != nil {
					done <- err
					return
				}
				defer q.Close()
				var c Chain
				g.inside(func() {
					if ok, err := q.Peek(&c); !ok {
						done <- fmt.Errorf("peek: %v %v", ok, err)
						return
					}
					if err := unix.Ftruncate(g.fd, 0); err != nil {
						done <- err
						return
					}
					done <- touch(q, &c)
				})
			})
			err := <-done
			var fault *dma.FaultError
			if !errors.As(err, &fault) {
				t.Fatalf("got %v, want a fault", err)
			}
			newGuest(t).echo(t)
		})
	}
}

// TestTruncatedBeforeTheStart: a goroutine that dma.Go has not started gets an error, too.
func TestTruncatedBeforeTheStart(t *testing.T) {
	g := newGuest(t)
	testkit.OK(t, unix.Ftruncate(g.fd, 0))
	var fault *dma.FaultError
	if _, err := NewDevice(g.space, rawConfig); !errors.As(err, &fault) {
		t.Fatalf("got %v, want a fault", err)
	}
	newGuest(t).echo(t)
}

func TestMisuseIsAnErrorOfItsOwn(t *testing.T) {
	for name, f := range map[string]func(q *Device, c *Chain){
		"commit of what is not held":  func(q *Device, c *Chain) { q.Commit(1, 0) },
		"commit of no head":           func(q *Device, c *Chain) { q.Commit(0xffff, 0) },
		"commit twice":                func(q *Device, c *Chain) { q.Commit(0, 0); q.Commit(0, 0) },
		"load of what is not held":    func(q *Device, c *Chain) { q.Load(1, c) },
		"load of what was committed":  func(q *Device, c *Chain) { q.Commit(0, 0); q.Load(0, c) },
		"rewind of too many":          func(q *Device, c *Chain) { q.Rewind(2) },
		"rewind over a committed one": func(q *Device, c *Chain) { q.Commit(0, 0); q.Rewind(1) },
		"use after close":             func(q *Device, c *Chain) { q.Close(); q.Commit(0, 0); q.Publish(); q.DisableKick() },
	} {
		t.Run(name, func(t *testing.T) {
			r := oneChain(t)
			q := r.device(t)
			var c Chain
			r.g.inside(func() {
				peek(t, q, &c)
				f(q, &c)
			})
			if err := q.Err(); !errors.Is(err, ErrMisuse) || errors.Is(err, ErrBadChain) {
				t.Fatalf("got %v", err)
			}
			testkit.ErrorIs(t, testkit.Err(q.Peek(&c)), ErrMisuse, "peek")
		})
	}
}
