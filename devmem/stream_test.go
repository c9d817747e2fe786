package devmem_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"syscall"
	"testing"

	"vnic.dev/vnic/devmem"
	"vnic.dev/vnic/devmem/plain"
	"vnic.dev/vnic/internal/testkit"
)

// script is a connection that receives a stream in random pieces, in a pool or in host memory.
type script struct {
	devmem.Conn
	t      *testing.T
	rnd    *rand.Rand
	pool   []byte
	rest   []byte
	device func() bool // whether the next RecvDevmem returns fragments; else bytes in host memory
	mixed  bool        // some fragments are linear ones
	most   int         // most bytes of a fragment
	free   []uint64    // numbers of free pages
	held   map[uint32]uint64
	last   uint32
	waited int
	end    error
}

func (c *script) RecvDevmem(frags []devmem.Frag, linear []byte, flags devmem.RecvFlags) (n, nf, nl int, err error) {
	switch {
	case len(c.rest) == 0:
		return 0, 0, 0, c.end
	case flags&devmem.DontWait != 0 && c.rnd.IntN(2) == 0:
		return 0, 0, 0, syscall.EAGAIN
	case flags == 0:
		if c.waited++; len(c.free) == 0 {
			c.t.Fatal("it waits, and holds all pages")
		}
	}
	if !c.device() {
		n = copy(linear[:1+c.rnd.IntN(min(len(linear), 3*c.most))], c.rest)
		c.rest = c.rest[n:]
		return n, 0, n, nil
	}
	for range 1 + c.rnd.IntN(8) {
		k := min(1+c.rnd.IntN(c.most), len(c.rest), len(linear)-n)
		if k == 0 || nf == len(frags) {
			break
		}
		if c.mixed && c.rnd.IntN(4) == 0 {
			nl += copy(linear[nl:], c.rest[:k])
			frags[nf] = devmem.Frag{Size: uint32(k), Kind: devmem.Linear}
		} else {
			if len(c.free) == 0 {
				break
			}
			i := c.rnd.IntN(len(c.free))
			page := c.free[i]
			c.free = append(c.free[:i], c.free[i+1:]...)
			off := page*devmem.PageSize + uint64(c.rnd.IntN(devmem.PageSize-k+1))
			copy(c.pool[off:], c.rest[:k])
			c.last += 1 + uint32(c.rnd.IntN(2))
			c.held[c.last] = page
			frags[nf] = devmem.Frag{Off: off, Size: uint32(k), Token: c.last, Binding: 1}
		}
		c.rest = c.rest[k:]
		n, nf = n+k, nf+1
	}
	if n == 0 {
		return 0, 0, 0, syscall.EAGAIN
	}
	return n, nf, nl, nil
}

func (c *script) DontNeed(ranges []devmem.TokenRange) (freed int, err error) {
	for _, r := range ranges {
		for i := range r.Count {
			page, known := c.held[r.Start+i]
			if !known {
				c.t.Errorf("token %d is given back, and nobody has it", r.Start+i)
				continue
			}
			delete(c.held, r.Start+i)
			for k := range uint64(devmem.PageSize) { // as a NIC that writes to the page at once
				c.pool[page*devmem.PageSize+k] = 0xee
			}
			c.free = append(c.free, page)
			freed++
		}
	}
	return freed, nil
}

// headLen is the length of a header.
const headLen = 8

func message(rnd *rand.Rand, most int) []byte {
	b := make([]byte, headLen+rnd.IntN(most))
	for i := range b {
		b[i] = byte(rnd.Uint32())
	}
	n := len(b) - headLen
	b[0], b[1], b[2] = byte(n), byte(n>>8), byte(n>>16)
	return b
}

// Invariant: devmem: A Stream returns the bytes of a connection in order, however they are
// fragmented and in whatever memory; it returns the tokens of data that was taken before it waits
// for bytes.
func TestStream(t *testing.T) {
	always := func(v bool) func() bool { return func() bool { return v } }
	for name, c := range map[string]struct {
		device func() bool
		mixed  bool
		most   int
		pages  uint64
	}{
		"device memory":           {always(true), false, devmem.PageSize, 64},
		"small fragments":         {always(true), false, 7, 4096},
		"with linear fragments":   {always(true), true, devmem.PageSize, 64},
		"host memory":             {always(false), false, 1000, 1},
		"either, as rules change": {nil, true, 2000, 256},
	} {
		t.Run(name, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(7, uint64(len(name))))
			const room = 1 << 20
			g := testkit.Must(plain.NewGPU(room + c.pages*devmem.PageSize))(t)
			defer func() { testkit.OK(t, g.Close()) }()
			d := testkit.Must(plain.New(plain.Options{GPUs: []*plain.GPU{g}}))(t)
			defer func() { testkit.OK(t, d.Close()) }()
			dst := testkit.Must(d.Register(0, 0, room))(t)
			pool := testkit.Must(d.Register(0, room, c.pages*devmem.PageSize))(t)
			conn := &script{t: t, rnd: rnd, pool: g.Bytes()[room:], device: c.device, mixed: c.mixed, most: c.most,
				held: make(map[uint32]uint64), end: io.EOF}
			if conn.device == nil {
				conn.device = func() bool { return rnd.IntN(2) == 0 }
			}
			for i := range c.pages {
				conn.free = append(conn.free, i)
			}
			var sent [][]byte
			for range 60 {
				sent = append(sent, message(rnd, 20_000))
				conn.rest = append(conn.rest, sent[len(sent)-1]...)
			}
			s := devmem.NewStream(conn, plain.NewMemory(g), pool)
			ctx := t.Context()
			for i, m := range sent {
				head := make([]byte, headLen)
				testkit.OK(t, s.Fill(ctx, headLen))
				testkit.OK(t, s.Look(ctx, head, 0))
				if !bytes.Equal(head, m[:headLen]) {
					t.Fatalf("head %d: %x, and not %x", i, head, m[:headLen])
				}
				n := uint64(head[0]) | uint64(head[1])<<8 | uint64(head[2])<<16
				testkit.OK(t, s.Skip(headLen))
				off := uint64(rnd.IntN(room - 20_000))
				testkit.OK(t, s.Receive(ctx, dst, off, n))
				if !bytes.Equal(g.Bytes()[off:off+n], m[headLen:]) {
					t.Fatalf("body %d of %d bytes is not what was sent", i, n)
				}
			}
			testkit.ErrorIs(t, s.Fill(ctx, 1), io.EOF)
			testkit.OK(t, s.Flush(ctx))
			testkit.Equal(t, "tokens that are held", len(conn.held), 0)
			if (s.HostBytes() > 0) != (c.mixed || name == "host memory") {
				t.Errorf("%d bytes came in host memory", s.HostBytes())
			}
		})
	}
}

func TestStreamLooksAtEachHead(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	g := testkit.Must(plain.NewGPU(256 * devmem.PageSize))(t)
	defer func() { testkit.OK(t, g.Close()) }()
	d := testkit.Must(plain.New(plain.Options{GPUs: []*plain.GPU{g}}))(t)
	defer func() { testkit.OK(t, d.Close()) }()
	pool := testkit.Must(d.Register(0, 0, g.Size()))(t)
	conn := &script{t: t, rnd: rnd, pool: g.Bytes(), device: func() bool { return true }, mixed: true, most: 700,
		held: make(map[uint32]uint64), end: io.EOF}
	for i := range uint64(256) {
		conn.free = append(conn.free, i)
	}
	for range 40_000 {
		conn.rest = append(conn.rest, byte(rnd.Uint32()))
	}
	all := bytes.Clone(conn.rest)
	m := plain.NewMemory(g)
	s := devmem.NewStream(conn, m, pool)
	ctx := t.Context()
	testkit.OK(t, s.Fill(ctx, len(all)))
	for _, each := range []devmem.Strided{{Off: 3, Stride: 1000, Len: 24, Count: 39},
		{Off: 0, Stride: 24, Len: 24, Count: 1000},
		{Off: 39_999, Len: 1, Count: 1}, {Off: 5, Stride: 0, Len: 16, Count: 3}, {Count: 7}} {
		got, want := make([]byte, each.Len*each.Count), []byte(nil)
		for i := range each.Count {
			want = append(want, all[each.Off+uint64(i)*each.Stride:][:each.Len]...)
		}
		testkit.OK(t, s.LookEach(ctx, got, each))
		if !bytes.Equal(got, want) {
			t.Errorf("%+v: other bytes", each)
		}
	}
	testkit.ErrorIs(t, s.LookEach(ctx, make([]byte, 2), devmem.Strided{Off: 39_999, Stride: 1, Len: 1, Count: 2}),
		syscall.EINVAL)
	testkit.ErrorIs(t, s.Look(ctx, make([]byte, 1), 40_000), syscall.EINVAL)
	testkit.ErrorIs(t, s.Look(ctx, make([]byte, 1), ^uint64(0)), syscall.EFAULT)
	testkit.ErrorIs(t, s.LookEach(ctx, make([]byte, 3), devmem.Strided{Len: 2, Count: 2}), syscall.EINVAL)
	testkit.ErrorIs(t, s.Skip(40_001), syscall.EINVAL)
	testkit.ErrorIs(t, s.Take(ctx, pool, 0, 40_001), syscall.EINVAL)
	testkit.ErrorIs(t, s.Take(ctx, pool, pool.Size(), 1), syscall.EFAULT)
	testkit.ErrorIs(t, s.Fill(ctx, devmem.MaxFill+1), syscall.EMSGSIZE)
	testkit.OK(t, s.Skip(39_990))
	testkit.ErrorIs(t, s.Fill(ctx, 11), io.ErrUnexpectedEOF)
	testkit.ErrorIs(t, s.Receive(ctx, pool, 0, 11), io.ErrUnexpectedEOF)
}

// crooked is a connection whose RecvDevmem returns the fragment frag, and n as the number of bytes.
type crooked struct {
	devmem.Conn
	frag devmem.Frag
	n    int
}

func (c *crooked) RecvDevmem(frags []devmem.Frag, _ []byte, _ devmem.RecvFlags) (n, nf, nl int, err error) {
	frags[0] = c.frag
	return c.n, 1, 0, nil
}

func TestFragmentsThatDoNotAddUp(t *testing.T) {
	for _, c := range []*crooked{
		{frag: devmem.Frag{Size: 5, Token: 1}, n: 4}, {frag: devmem.Frag{Size: 5, Token: 1}, n: 6},
		{frag: devmem.Frag{Token: 1}, n: 1}, {frag: devmem.Frag{Size: 1, Kind: devmem.Linear}, n: 1},
	} {
		testkit.ErrorIs(t, devmem.NewStream(c, nil, buffer(4096)).Fill(t.Context(), 1), syscall.EPROTO)
	}
	// A Stream without a pool does not accept a fragment in device memory.
	c := &crooked{frag: devmem.Frag{Size: 1, Token: 1}, n: 1}
	testkit.ErrorIs(t, devmem.NewStream(c, nil, nil).Fill(t.Context(), 1), syscall.EPROTO)
}

type buffer uint64

func (b buffer) GPU() int       { return 0 }
func (b buffer) Offset() uint64 { return 0 }
func (b buffer) Size() uint64   { return uint64(b) }
func (b buffer) Close() error   { return nil }

// sink is a connection whose SendDevmem accepts at most 1000 bytes at a time; the third call also returns fail.
type sink struct {
	devmem.Conn
	took    []devmem.Range
	written int
	sends   uint32
	fail    error
}

func (c *sink) SendDevmem(_ uint32, r []devmem.Range) (int, error) {
	n := min(r[0].Len, 1000)
	c.took = append(c.took, devmem.Range{Off: r[0].Off, Len: n})
	if c.sends++; c.sends == 3 && c.fail != nil {
		return int(n), c.fail
	}
	return int(n), nil
}

func (c *sink) Write(b []byte) (int, error) { c.written += len(b); return len(b), nil }

type binding struct{ devmem.Binding }

func (binding) ID() uint32 { return 4 }

// zeros is a Memory whose Get does nothing.
type zeros struct{ devmem.Memory }

func (zeros) Get(context.Context, []byte, devmem.Buffer, uint64) error { return nil }

func TestSender(t *testing.T) {
	c := &sink{}
	s := devmem.NewSender(c, zeros{})
	ctx := t.Context()
	testkit.OK(t, s.Send(ctx, buffer(10_000), binding{}, 100, 2500))
	pos := uint64(100)
	for _, r := range c.took {
		testkit.Equal(t, "offset", r.Off, pos)
		pos += r.Len
	}
	testkit.Equal(t, "end", pos, 2600)
	testkit.OK(t, s.Send(ctx, buffer(1<<20), nil, 5, 1<<20-5))
	testkit.Equal(t, "bytes through host memory", c.written, 1<<20-5)
	testkit.ErrorIs(t, s.Send(ctx, buffer(4096), binding{}, 4096, 1), syscall.EFAULT)
	testkit.ErrorIs(t, s.Send(ctx, buffer(4096), binding{}, ^uint64(0), 2), syscall.EFAULT)
	broken := errors.New("broken")
	s = devmem.NewSender(&sink{fail: broken}, zeros{})
	testkit.ErrorIs(t, s.Send(ctx, buffer(10_000), binding{}, 0, 9000), broken)
}
