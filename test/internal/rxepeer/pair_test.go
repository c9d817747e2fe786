package rxepeer

import (
	"fmt"
	"hash/crc32"
	"maps"
	"slices"
	"testing"
	"time"

	"vnic.dev/vnic/gpumem"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/machine/machinetest"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/wire"
)

const (
	region = 2 << 20 // bytes of each region; regions source and target follow, by number
	source = 0
	target = 1
	guard  = 64 // bytes checked before and after the bytes that an operation writes
	poison = 0x5a
)

type side struct {
	*Peer
	mrs [2]MR
}

// pair is two guests on a switch, and a third port.
type pair struct {
	*testing.T
	lab   *lab.Lab
	sides [2]*side
	seed  uint64 // of the last pattern
}

func newPair(t *testing.T) *pair {
	t.Helper()
	im := Images(t)
	x := &pair{T: t, lab: machinetest.Lab(t, lab.Uniform(3, lab.NIC{Model: lab.Virtio,
		NICOptions: lab.NICOptions{MTU: 9000}}, 0), nil)}
	for i, p := range Boot(t, im, x.lab.Machine(0), x.lab.Machine(1)) {
		s := &side{Peer: p}
		for m := range s.mrs {
			s.mrs[m] = testkit.Must(p.MR(m, region, All))(t)
		}
		x.sides[i] = s
	}
	t.Logf("rxe of Linux %s, MTU %d", x.sides[0].Kernel, x.sides[0].PortMTU)
	return x
}

// connect connects queue pair q of both sides. Their first packet numbers are close to 2^24, so they soon wrap.
func (x *pair) connect(q, family int, o Path) {
	x.Helper()
	var ends [2]End
	for i, s := range x.sides {
		ends[i] = testkit.Must(s.QP(q, family, uint32(0xfffff0+i)))(x)
	}
	for i, s := range x.sides {
		testkit.OK(x, s.Connect(q, ends[1-i], o))
		testkit.Equal(x, "state", testkit.Must(s.State(q))(x).Name, "RTS")
	}
}

// moved is a transfer from one side to the other.
type moved struct {
	op   Op
	q    int
	from int    // number of the side that has the bytes at first
	n    uint64 // bytes
	flip int64  // index of the byte at which move makes the source wrong; -1: none
}

// move carries out the transfer m, checks completions and the memory around the destination, and returns the bytes
// at the destination that differ from the pattern.
func (x *pair) move(m moved) Wrong {
	x.Helper()
	x.seed++
	seed, imm := x.seed, uint32(x.seed)*0x9e3779b9
	const off, to = 4096 - 5, 8192 - 3 // both just before a page border
	a, b := x.sides[m.from], x.sides[1-m.from]
	testkit.OK(x, a.Fill(source, off, m.n, seed, 0))
	if m.flip >= 0 {
		testkit.OK(x, a.Flip(source, off+uint64(m.flip)))
	}
	testkit.OK(x, b.Poison(target, to-guard, m.n+2*guard, poison))
	if m.op.Receives() {
		if m.op == WriteImm {
			testkit.OK(x, b.Recv(m.q, seed, target, 0, 0)) // a write uses none of the request's memory
		} else {
			testkit.OK(x, b.Recv(m.q, seed, target, to, m.n))
		}
	}
	poster, r := a, Request{ID: seed, Op: m.op, M: source, Off: off, Len: m.n, VA: b.mrs[target].VA + to,
		RKey: b.mrs[target].RKey, Imm: imm}
	if m.op == Read {
		poster, r = b, Request{ID: seed, Op: Read, M: target, Off: to, Len: m.n, VA: a.mrs[source].VA + off,
			RKey: a.mrs[source].RKey}
	}
	testkit.OK(x, poster.Post(m.q, r))
	c := x.completion(poster, m.q)
	testkit.Equal(x, fmt.Sprintf("%+v: completion", m), Completion{ID: c.ID, Status: c.Status, Recv: c.Recv},
		Completion{ID: seed})
	if m.op.Receives() {
		want := Completion{ID: seed, Text: "success", Recv: true, Len: uint32(m.n)}
		if m.op.Immediate() {
			want.HasImm, want.Imm = true, imm
		}
		testkit.Equal(x, fmt.Sprintf("%+v: completion of the receive request", m), x.completion(b, m.q), want)
	}
	for _, addr := range []uint64{to - guard, to + m.n} {
		w := testkit.Must(b.Same(target, addr, guard, poison))(x)
		testkit.Equal(x, fmt.Sprintf("%+v: what is around it", m), w, Wrong{0, -1})
	}
	return testkit.Must(b.Check(target, to, m.n, seed, 0))(x)
}

func (x *pair) completion(s *side, q int) Completion {
	x.Helper()
	c, ok, err := s.Poll(q, 30*time.Second)
	testkit.OK(x, err)
	if !ok {
		x.Fatalf("queue pair %d: no completion", q)
	}
	return c
}

var ops = []Op{Write, WriteImm, Read, Send, SendImm}

// Invariant: rxepeer: Between two of Linux's rxe all operations move all bytes right, and one that is changed is seen.
func TestTwoGuests(t *testing.T) {
	x := newPair(t)
	x.pattern()
	x.connect(0, IPv4, Path{MTU: 1024})
	for _, op := range ops {
		for i, n := range []uint64{1, 7, 1023, 1024, 1025, 4096, 64<<10 + 1, 1 << 20} {
			m := moved{op: op, from: i % 2, n: n, flip: -1}
			testkit.Equal(t, fmt.Sprintf("%+v: what is wrong", m), x.move(m), Wrong{0, -1})
		}
		m := moved{op: op, from: 1, n: 100_000, flip: 77_777}
		testkit.Equal(t, fmt.Sprintf("%+v: what is wrong", m), x.move(m), Wrong{1, 77_777})
		t.Logf("%s: 1 B to 1 MiB", op)
	}
	testkit.Equal(t, "the port's MTU", x.sides[0].PortMTU, 4096)
	x.connect(1, IPv6, Path{})
	for _, op := range ops {
		for _, n := range []uint64{4095, 4097, 100_000} {
			m := moved{op: op, q: 1, n: n, flip: -1}
			testkit.Equal(t, fmt.Sprintf("IPv6: %+v: what is wrong", m), x.move(m), Wrong{0, -1})
		}
	}
	x.frames()
	x.process()
	x.refusals()
	x.loss()
}

// pattern checks by CRC-32 that rdma-peer fills memory with the bytes of gpumem.FillAt: one seed, nine parts.
func (x *pair) pattern() {
	a := x.sides[0]
	for i := range uint64(9) {
		b := make([]byte, 1000+i)
		gpumem.FillAt(b, 77, i)
		testkit.OK(x, a.Fill(source, i, uint64(len(b)), 77, i))
		testkit.Equal(x, "the pattern's sum", testkit.Must(a.Sum(source, i, uint64(len(b))))(x), crc32.ChecksumIEEE(b))
	}
}

// refusals checks that rxe refuses invalid requests and writes nothing for them, that requests end with an error if
// nobody receives or answers, and that another queue pair still works.
func (x *pair) refusals() {
	a, b := x.sides[0], x.sides[1]
	const locked, q = 2, 2
	readOnly := testkit.Must(b.MR(locked, 4096, "lr"))(x)
	writeOnly := testkit.Must(b.MR(locked+1, 4096, "lw"))(x)
	gone := testkit.Must(b.MR(locked+2, 4096, All))(x)
	testkit.OK(x, b.Dereg(locked+2))
	for _, m := range []int{locked, locked + 1, locked + 2} {
		testkit.OK(x, b.Poison(m, 0, 4096, poison))
	}
	short := Path{RNRRetry: NoRetry, Retry: 1, Timeout: 12}
	for _, c := range []struct {
		what string
		r    Request
		want Status
	}{
		{"write where only reads may be", Request{Op: Write, Len: 9, VA: readOnly.VA, RKey: readOnly.RKey}, RemoteAccess},
		{"read where only writes may be", Request{Op: Read, Len: 9, VA: writeOnly.VA, RKey: writeOnly.RKey}, RemoteAccess},
		{"a key of nothing", Request{Op: Write, Len: 9, VA: writeOnly.VA, RKey: writeOnly.RKey ^ 0x5500}, RemoteAccess},
		{"a region that is gone", Request{Op: Write, Len: 9, VA: gone.VA, RKey: gone.RKey}, RemoteAccess},
		{"a byte beyond the end", Request{Op: Write, Len: 4096, VA: writeOnly.VA + 1, RKey: writeOnly.RKey}, RemoteAccess},
		{"a byte before the beginning", Request{Op: Write, Len: 9, VA: writeOnly.VA - 1, RKey: writeOnly.RKey},
			RemoteAccess},
		{"nobody receives", Request{Op: Send, Len: 9}, RNRRetriesExceeded},
	} {
		x.connect(q, IPv4, short)
		c.r.ID = 1
		testkit.OK(x, a.Post(q, c.r))
		got := x.completion(a, q)
		testkit.Equal(x, c.what+": status", got.Status, c.want)
		testkit.Equal(x, c.what+": state", testkit.Must(a.State(q))(x).Name, "ERROR")
		c.r.ID = 2
		testkit.OK(x, a.Post(q, c.r))
		testkit.Equal(x, c.what+": status of the next one", x.completion(a, q).Status, Flushed)
		for m := locked; m <= locked+2; m++ {
			testkit.Equal(x, c.what+": what is written", testkit.Must(b.Same(m, 0, 4096, poison))(x), Wrong{0, -1})
		}
		e, ok, err := b.Async(0)
		testkit.OK(x, err)
		x.Logf("%s: %s; the other end is %s, event %v %s", c.what, got.Text, testkit.Must(b.State(q))(x).Name, ok, e.Text)
	}
	x.connect(q, IPv4, short)
	testkit.OK(x, b.Drop(q))
	testkit.OK(x, a.Post(q, Request{Op: Write, Len: 9, VA: b.mrs[target].VA, RKey: b.mrs[target].RKey}))
	testkit.Equal(x, "nobody answers: status", x.completion(a, q).Status, RetriesExceeded)
	m := moved{op: Write, n: 5000, flip: -1}
	testkit.Equal(x, "an innocent queue pair: what is wrong", x.move(m), Wrong{0, -1})
}

func (x *pair) loss() {
	before := [2]map[string]uint64{}
	for i, s := range x.sides {
		before[i] = testkit.Must(s.Counters())(x)
		testkit.OK(x, x.lab.Apply(testkit.Must(lab.ParseChange("link "+x.lab.Port(i).Name+" loss=1%"))(x)))
	}
	for _, op := range ops {
		for from := range x.sides {
			m := moved{op: op, from: from, n: 1 << 20, flip: -1}
			testkit.Equal(x, fmt.Sprintf("loss: %+v: what is wrong", m), x.move(m), Wrong{0, -1})
		}
	}
	for i, s := range x.sides {
		c := testkit.Must(s.Counters())(x)
		changed := map[string]uint64{}
		for name := range c {
			if n := c[name] - before[i][name]; n > 0 {
				changed[name] = n
			}
		}
		lost := x.lab.Port(i).NIC().Link().Counters().Drops[wire.DropLinkLoss]
		x.Logf("loss: link %d lost %d; its guest's rxe: %v", i, lost, changed)
		if lost == 0 || changed["out_of_seq_request"]+changed["rcvd_seq_err"]+changed["completer_retry_err"] == 0 {
			x.Errorf("loss: link %d lost %d, and its guest's rxe counts %v of %v", i, lost, changed,
				slices.Sorted(maps.Keys(c)))
		}
	}
}
