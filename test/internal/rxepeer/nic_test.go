package rxepeer

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/gpumem"
	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/driver"
	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/machine/machinetest"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/stack"
)

// judged has the two ends of a test: vnic's NIC, with a GPU's memory, and rxe in a guest, the peer.
type judged struct {
	*testing.T
	lab  *lab.Lab
	rxe  *Peer
	mrs  [2]MR
	port *lab.Port
	c    *control.Client
	gpu  []byte // the registered buffer, a part of the GPU's memory
	pd   uint32
	key  uint32 // of an MR of the whole buffer; the MR's addresses begin at base
	seed uint64
}

const (
	base  = 0x1_0000_0000_0000
	large = 64<<20 + 8192
)

func newJudged(t *testing.T) *judged {
	t.Helper()
	im := Images(t)
	x := &judged{T: t, lab: machinetest.Lab(t, lab.Uniform(2, lab.NIC{Model: lab.Virtio,
		NICOptions: lab.NICOptions{MTU: 9000}}, 256<<20), nil)}
	x.rxe = Boot(t, im, x.lab.Machine(0))[0]
	for m := range x.mrs {
		x.mrs[m] = testkit.Must(x.rxe.MR(m, large, All))(t)
	}
	x.port = x.lab.Port(1)
	n := testkit.Must(x.port.InProcess(driver.Options{QueuePairs: 1}))(t)
	s, err := stack.New(n, n.Control(), stack.Options{Addresses: []netip.Prefix{x.port.Addr4, x.port.Addr6},
		MTU: x.port.MTU})
	if err != nil {
		testkit.NoError(t, n.Close())
		t.Fatal(err)
	}
	t.Cleanup(func() { testkit.NoError(t, s.Close()) })
	x.c = n.Control()
	ctx := t.Context()
	g := x.port.GPU()
	const size = 2 * (64<<20 + 8192)
	buffer := testkit.Must(x.c.RegisterBuffer(ctx, uint16(g.ID()), 0, size))(t)
	x.pd = testkit.Must(x.c.AddPD(ctx))(t)
	x.key = testkit.Must(x.c.AddMR(ctx, control.MR{PD: x.pd, Kind: control.MRBuffer, Buffer: buffer, VA: base, Len: size,
		Access: control.AccessLocalWrite | control.AccessRemoteWrite | control.AccessRemoteRead}))(t)
	x.gpu = testkit.Must(unix.Mmap(int(g.File.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED))(t)
	t.Cleanup(func() { testkit.NoError(t, unix.Munmap(x.gpu)) })
	return x
}

var operations = map[Op]control.WROp{Write: control.WRWrite, WriteImm: control.WRWriteImm, Read: control.WRRead,
	Send: control.WRSend, SendImm: control.WRSendImm}

type end struct {
	x   *judged
	qpn uint32
	cq  uint32
	q   int // number of the peer's queue pair
}

func (x *judged) connect(q, family, mtu int, change func(*control.QPPath)) *end {
	x.Helper()
	ctx := x.Context()
	e := &end{x: x, q: q, cq: testkit.Must(x.c.AddCQ(ctx, 128))(x)}
	e.qpn = testkit.Must(x.c.AddQP(ctx, control.QP{PD: x.pd, SendCQ: e.cq, RecvCQ: e.cq, MaxSend: 64, MaxRecv: 64}))(x)
	theirs := testkit.Must(x.rxe.QP(q, family, 0xfffff0))(x)
	local := x.port.Addr4.Addr()
	if family == IPv6 {
		local = x.port.Addr6.Addr()
	}
	path := control.QPPath{QPN: e.qpn, RemoteQPN: theirs.QPN, SendPSN: 0xffff80, RecvPSN: theirs.PSN, Local: local,
		Remote: theirs.Addr, MAC: x.lab.Port(0).MAC, MTU: uint16(mtu), Timeout: 16, Retries: 7, RNR: 7, RNRTimer: 12,
		Reads: 8, ReadDepth: 8}
	if change != nil {
		change(&path)
	}
	testkit.OK(x, x.c.ConnectQP(ctx, path))
	testkit.OK(x, x.rxe.Connect(q, End{QPN: e.qpn, PSN: path.SendPSN, Addr: local}, Path{MTU: mtu, Timeout: 16}))
	return e
}

func (e *end) wait() control.WC {
	e.x.Helper()
	ctx, stop := context.WithTimeout(e.x.Context(), 2*time.Minute)
	defer stop()
	for {
		c, err := e.x.c.PollCQ(ctx, control.Poll{CQ: e.cq, Max: 1})
		testkit.OK(e.x, err)
		if len(c.WCs) > 0 {
			return c.WCs[0]
		}
	}
}

// from makes the NIC carry out an operation of n bytes, and checks completions and memory.
func (e *end) from(op Op, n uint64) {
	x := e.x
	x.Helper()
	x.seed++
	const off, to = 4096 - 5, 4096 - 3
	local, far := x.gpu[:large], x.mrs[target]
	w := control.WR{ID: x.seed, Op: operations[op], Flags: control.WRSignaled,
		SGEs: []control.SGE{{VA: base + off, Len: uint32(n), Key: x.key}}}
	if op.Immediate() {
		w.Imm = uint32(x.seed) * 0x9e3779b9
	}
	if op != Send && op != SendImm {
		w.Remote, w.Key = far.VA+to, far.RKey
	}
	var before []byte
	if op == Read {
		testkit.OK(x, x.rxe.Fill(target, to, n, x.seed, 0))
		poisonAll(local[:n+2*off])
	} else {
		gpumem.FillAt(local[off:off+n], x.seed, 0)
		testkit.OK(x, x.rxe.Poison(target, to-guard, n+2*guard, poison))
		before = slices.Clone(local[:n+2*off])
	}
	if op.Receives() {
		k := n
		if op == WriteImm {
			k = 0
		}
		testkit.OK(x, x.rxe.Recv(e.q, x.seed, target, to, k))
	}
	testkit.OK(x, x.c.PostSend(x.Context(), control.Post{QPN: e.qpn, WRs: []control.WR{w}}))
	c := e.wait()
	what := fmt.Sprintf("the NIC's %s of %d bytes", op, n)
	testkit.Equal(x, what+": completion", [2]uint64{c.ID, uint64(c.Status)}, [2]uint64{x.seed, 0})
	if op.Receives() {
		r := Completion{ID: x.seed, Text: "success", Recv: true, Len: uint32(n), HasImm: op.Immediate(), Imm: w.Imm}
		got, ok, err := x.rxe.Poll(e.q, 30*time.Second)
		testkit.OK(x, err)
		testkit.Equal(x, what+": completion of the receive", fmt.Sprint(got, ok), fmt.Sprint(r, true))
	}
	if op == Read {
		k := gpumem.MatchAt(local[off:off+n], x.seed, 0)
		if k != int(n) || !onlyPoison(local[:off]) || !onlyPoison(local[off+n:n+2*off]) {
			x.Errorf("%s: %d bytes are right, or something else was written", what, k)
		}
		return
	}
	testkit.Equal(x, what+": what is wrong", testkit.Must(x.rxe.Check(target, to, n, x.seed, 0))(x), Wrong{0, -1})
	for _, addr := range []uint64{to - guard, to + n} {
		testkit.Equal(x, what+": what is around it", testkit.Must(x.rxe.Same(target, addr, guard, poison))(x), Wrong{0, -1})
	}
	if !bytes.Equal(local[:n+2*off], before) {
		x.Errorf("%s: the NIC's own memory has changed", what)
	}
}

// to makes the peer carry out an operation of n bytes, and checks completions and memory.
func (e *end) to(op Op, n uint64) {
	x := e.x
	x.Helper()
	x.seed++
	const off, to = 4096 - 5, 4096 - 3
	r := Request{ID: x.seed, Op: op, M: source, Off: off, Len: n}
	if op.Immediate() {
		r.Imm = uint32(x.seed) * 0x9e3779b9
	}
	if op != Send && op != SendImm {
		r.VA, r.RKey = base+to, x.key
	}
	local := x.gpu[:n+2*to]
	if op == Read {
		gpumem.FillAt(local[to:to+n], x.seed, 0)
		testkit.OK(x, x.rxe.Poison(source, off-guard, n+2*guard, poison))
	} else {
		testkit.OK(x, x.rxe.Fill(source, off, n, x.seed, 0))
		poisonAll(local)
	}
	if op.Receives() {
		w := control.WR{ID: x.seed, Op: control.WRRecv}
		if op != WriteImm {
			w.SGEs = []control.SGE{{VA: base + to, Len: uint32(n), Key: x.key}}
		}
		testkit.OK(x, x.c.PostRecv(x.Context(), control.Post{QPN: e.qpn, WRs: []control.WR{w}}))
	}
	testkit.OK(x, x.rxe.Post(e.q, r))
	what := fmt.Sprintf("the peer's %s of %d bytes", op, n)
	got, ok, err := x.rxe.Poll(e.q, time.Minute)
	testkit.OK(x, err)
	testkit.Equal(x, what+": completion", fmt.Sprint(got.ID, got.Status, ok), fmt.Sprint(x.seed, 0, true))
	if op.Receives() {
		testkit.Equal(x, what+": completion of the receive", e.wait(), control.WC{ID: x.seed, QPN: e.qpn, Op: control.WRRecv,
			Len: uint32(n), HasImm: op.Immediate(), Imm: r.Imm})
	}
	if op == Read {
		testkit.Equal(x, what+": what is wrong", testkit.Must(x.rxe.Check(source, off, n, x.seed, 0))(x), Wrong{0, -1})
		for _, addr := range []uint64{off - guard, off + n} {
			testkit.Equal(x, what+": what is around it", testkit.Must(x.rxe.Same(source, addr, guard, poison))(x), Wrong{0, -1})
		}
		return
	}
	if k := gpumem.MatchAt(local[to:to+n], x.seed, 0); k != int(n) || !onlyPoison(local[:to]) ||
		!onlyPoison(local[to+n:]) {
		x.Errorf("%s: %d bytes are right, or something else was written", what, k)
	}
}

func poisonAll(b []byte) {
	for i := range b {
		b[i] = poison
	}
}

func onlyPoison(b []byte) bool {
	return !slices.ContainsFunc(b, func(c byte) bool { return c != poison })
}

// Invariant: vnic rdma: Between the NIC and Linux's rxe all operations move all bytes right, both ways, with and
// without loss; what is refused writes nothing.
func TestNICAndRXE(t *testing.T) {
	x := newJudged(t)
	v4, v6 := x.connect(0, IPv4, 1024, nil), x.connect(1, IPv6, 4096, nil)
	sizes := []uint64{0, 1, 3, 1023, 1024, 1025, 4096, 65_537, 1 << 20, 64 << 20}
	for _, op := range ops {
		for _, n := range sizes {
			v4.from(op, n)
			v4.to(op, n)
		}
		for _, n := range []uint64{5, 4097, 100_000} {
			v6.from(op, n)
			v6.to(op, n)
		}
	}
	counts := testkit.Must(x.c.RDMACounts(t.Context()))(t)
	in, out := counts.In, counts.Out
	if in.HostBytes+in.GPUFileBytes+out.HostBytes+out.GPUFileBytes+counts.ICRC+counts.Malformed != 0 {
		t.Errorf("payload outside of the buffer, or packets that were wrong: %+v", counts)
	}
	t.Logf("%+v", counts)
	x.refusals()
	x.loss()
}

// loss tests operations while each of both links loses 1 % of its packets.
func (x *judged) loss() {
	for i := range 2 {
		testkit.OK(x, x.lab.Apply(testkit.Must(lab.ParseChange("link "+x.lab.Port(i).Name+" loss=1%"))(x)))
	}
	e := x.connect(2, IPv4, 1024, nil)
	before := testkit.Must(x.c.RDMACounts(x.Context()))(x)
	for _, op := range ops {
		for _, n := range []uint64{1, 1025, 1 << 20} {
			e.from(op, n)
			e.to(op, n)
		}
	}
	after := testkit.Must(x.c.RDMACounts(x.Context()))(x)
	came := func(c control.RDMACounts) uint64 { return c.AgainPackets + c.Sequence }
	if after.Out.AgainPackets == before.Out.AgainPackets || came(after.In) == came(before.In) {
		x.Errorf("nothing was lost: %+v", after)
	}
	x.Logf("with loss: %+v", after)
	for i := range 2 {
		testkit.OK(x, x.lab.Apply(testkit.Must(lab.ParseChange("link "+x.lab.Port(i).Name+" loss=0%"))(x)))
	}
}

// refusals checks that each end refuses invalid requests, and sends without a receive request, and writes nothing for
// them, and that another queue pair still works.
func (x *judged) refusals() {
	ctx := x.Context()
	innocent := x.connect(3, IPv4, 1024, nil)
	const m = 2
	theirs := testkit.Must(x.rxe.MR(m, 4096, "lr"))(x)
	testkit.OK(x, x.rxe.Poison(m, 0, 4096, poison))
	local := testkit.Must(x.c.AddMR(ctx, control.MR{PD: x.pd, Kind: control.MRBuffer, Buffer: 1, VA: base, Len: 4096,
		Off: 8192, Access: control.AccessRemoteWrite}))(x)
	poisonAll(x.gpu[:large])
	for _, c := range []struct {
		what string
		w    control.WR
		want control.WCStatus
	}{
		{"the NIC's write where only reads may be", control.WR{Op: control.WRWrite, Remote: theirs.VA, Key: theirs.RKey},
			control.WCRemoteAccess},
		{"the NIC's key of nothing", control.WR{Op: control.WRWrite, Remote: theirs.VA, Key: theirs.RKey ^ 0x5500},
			control.WCRemoteAccess},
		{"the NIC's read a byte beyond the end",
			control.WR{Op: control.WRRead, Remote: theirs.VA + 4096 - 8, Key: theirs.RKey}, control.WCRemoteAccess},
		{"the NIC's send, and nobody receives", control.WR{Op: control.WRSend}, control.WCRNRExceeded},
	} {
		e := x.connect(4, IPv4, 1024, func(p *control.QPPath) { p.RNR, p.Retries = 1, 2 })
		c.w.ID, c.w.SGEs = 1, []control.SGE{{VA: base, Len: 9, Key: x.key}}
		testkit.OK(x, x.c.PostSend(ctx, control.Post{QPN: e.qpn, WRs: []control.WR{c.w}}))
		testkit.Equal(x, c.what, e.wait().Status, c.want)
		c.w.ID = 2
		testkit.OK(x, x.c.PostSend(ctx, control.Post{QPN: e.qpn, WRs: []control.WR{c.w}}))
		testkit.Equal(x, c.what+": the next one", e.wait().Status, control.WCFlushed)
		testkit.Equal(x, c.what+": what is written", testkit.Must(x.rxe.Same(m, 0, 4096, poison))(x), Wrong{0, -1})
	}
	for _, c := range []struct {
		what string
		r    Request
		want Status
	}{
		{"the peer's read where only writes may be", Request{Op: Read, Len: 9, VA: base, RKey: local}, RemoteAccess},
		{"the peer's key of nothing", Request{Op: Write, Len: 9, VA: base, RKey: local + 1<<20}, RemoteAccess},
		{"the peer's write a byte beyond the end", Request{Op: Write, Len: 4096, VA: base + 1, RKey: local}, RemoteAccess},
		{"the peer's write a byte before the beginning", Request{Op: Write, Len: 9, VA: base - 1, RKey: local}, RemoteAccess},
		{"the peer's write at the end of all addresses", Request{Op: Write, Len: 4096, VA: 1<<64 - 1000, RKey: local},
			RemoteAccess},
		{"the peer's send, and nobody receives", Request{Op: Send, Len: 9}, RNRRetriesExceeded},
	} {
		e := x.connect(4, IPv4, 1024, nil)
		if c.r.Op == Send { // the peer must give up without retries
			e = x.connectShort()
		}
		c.r.ID = 1
		testkit.OK(x, x.rxe.Post(4, c.r))
		got, ok, err := x.rxe.Poll(4, time.Minute)
		testkit.OK(x, err)
		testkit.Equal(x, c.what, fmt.Sprint(got.Status, ok), fmt.Sprint(c.want, true))
		if c.want == RemoteAccess {
			testkit.Equal(x, c.what+": the NIC's state", testkit.Must(x.c.QPStatus(ctx, e.qpn))(x).State, control.QPError)
		}
		if !onlyPoison(x.gpu[:large]) {
			x.Errorf("%s: something was written", c.what)
		}
	}
	innocent.from(Write, 5000)
	innocent.to(Write, 5000)
}

func (x *judged) connectShort() *end {
	e := x.connect(4, IPv4, 1024, nil)
	ctx := x.Context()
	e.qpn = testkit.Must(x.c.AddQP(ctx, control.QP{PD: x.pd, SendCQ: e.cq, RecvCQ: e.cq, MaxSend: 1, MaxRecv: 1}))(x)
	theirs := testkit.Must(x.rxe.QP(4, IPv4, 5))(x)
	testkit.OK(x, x.c.ConnectQP(ctx, control.QPPath{QPN: e.qpn, RemoteQPN: theirs.QPN, SendPSN: 7, RecvPSN: 5,
		Local: x.port.Addr4.Addr(), Remote: theirs.Addr, MAC: x.lab.Port(0).MAC, MTU: 1024, Timeout: 16, RNRTimer: 1,
		Reads: 1, ReadDepth: 1}))
	testkit.OK(x, x.rxe.Connect(4, End{QPN: e.qpn, PSN: 7, Addr: x.port.Addr4.Addr()}, Path{MTU: 1024, RNRRetry: NoRetry}))
	return e
}
