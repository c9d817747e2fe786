package rdma

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"vnic.dev/vnic/dma"
	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/wire"
	"vnic.dev/vnic/splitter"
)

// victim is a pair whose end b is the victim of a hand-made peer: for one queue pair of b the test makes each frame
// of the peer by hand. Another queue pair of b is connected to end a as usual, and must continue (the innocent one).
type victim struct {
	*pair // with the innocent queue pairs, qa and qb
	t     testing.TB
	qpn   uint32 // b's queue pair with the hand-made peer
	ip    netip.Addr
	mac   wire.MAC
	psn   uint32 // number of the hand-made peer's next request
	want  []byte // expected contents of b's memory
	wantA []byte
	ids   uint64
	mute  bool // do not keep frames to the hand-made peer in sent
	sent  []answered
	n     int // number of frames to the hand-made peer
}

type answered struct {
	header
	payload []byte
}

const (
	forgedQPN = 0x123456 // queue pair number of the hand-made peer
	forgedPSN = 0xfffffe
	ownPSN    = 0x800000
)

// newVictim makes a victim, with path MTU 256. change may change the path to the hand-made peer; nil: no change.
func newVictim(t testing.TB, change func(p *control.QPPath)) *victim {
	t.Helper()
	small := func(p *control.QPPath) { p.MTU = 256 }
	v := &victim{pair: newPair(t, small), t: t, ip: netip.MustParseAddr("10.0.0.99"), mac: wire.MAC{2, 0, 0, 0, 0, 99},
		psn: forgedPSN}
	for i := range v.b.mem {
		v.a.mem[i], v.b.mem[i] = byte(i*7+i>>8), byte(i*13+i>>8)
	}
	v.want, v.wantA = slices.Clone(v.b.mem), slices.Clone(v.a.mem)
	v.qpn = v.another(change)
	return v
}

// another makes one more queue pair of b with a hand-made peer, and returns its number.
func (v *victim) another(change func(p *control.QPPath)) uint32 {
	v.t.Helper()
	b := v.b
	n := testkit.Must(b.AddQP(control.QP{PD: b.pd, SendCQ: b.cq, RecvCQ: b.cq, MaxSend: 64, MaxRecv: 64}))(v.t)
	p := control.QPPath{QPN: n, RemoteQPN: forgedQPN, SendPSN: ownPSN, RecvPSN: forgedPSN, Local: b.ip, Remote: v.ip,
		MAC: v.mac, MTU: 256, Timeout: 14, Retries: 2, RNR: 3, RNRTimer: 12, Reads: 4, ReadDepth: 4}
	if change != nil {
		change(&p)
	}
	testkit.OK(v.t, b.ConnectQP(p))
	return n
}

// raw makes a frame with the bytes b behind UDP's header. With sum, the ICRC replaces the last four, if b has at least
// 16.
func (v *victim) raw(from, to netip.Addr, b []byte, sum bool) *wire.Packet {
	v.t.Helper()
	q := &qp{e: &Engine{c: Config{MAC: v.mac}}, n: 7}
	q.path = control.QPPath{Local: from, Remote: to, MAC: v.b.c.MAC}
	q.makeFrame()
	head := q.frame
	if from.Is4() {
		binary.BigEndian.PutUint16(head[16:], uint16(28+len(b)))
	} else {
		binary.BigEndian.PutUint16(head[18:], uint16(8+len(b)))
	}
	binary.BigEndian.PutUint16(head[len(head)-4:], uint16(8+len(b)))
	p := &wire.Packet{Header: head}
	testkit.OK(v.t, splitter.Parse(head, uint32(len(head)+len(b)), &p.Meta.Headers))
	if p.Meta.Headers.Class != splitter.UDP {
		v.t.Fatalf("a hand-made frame is not UDP: %+v", p.Meta.Headers)
	}
	splitter.FixIPv4(&p.Meta.Headers, head)
	b = slices.Clone(b)
	if end := len(b) - icrcLen; sum && end >= 12 {
		binary.LittleEndian.PutUint32(b[end:], icrcByBits(append(slices.Clone(head), b[:end]...)))
	}
	p = with(p, b)
	p.Prepare()
	return p
}

// give passes a packet of the hand-made peer, with a right ICRC, to b, and reports whether b took it as a queue pair's.
func (v *victim) give(h header, payload ...byte) bool {
	v.t.Helper()
	return v.take(v.packet(h, payload))
}

func (v *victim) packet(h header, payload []byte) *wire.Packet {
	h.pad = uint8(-len(payload) & 3)
	return v.raw(v.ip, v.b.ip, v.bytes(h, payload), true)
}

// bytes returns a packet from behind UDP's header on, with padding and room for the ICRC.
func (v *victim) bytes(h header, payload []byte) []byte {
	if h.qpn == 0 {
		h.qpn = v.qpn
	}
	return append(append(h.append(nil), payload...), make([]byte, int(h.pad)+icrcLen)...)
}

func (v *victim) take(p *wire.Packet) bool {
	in := v.b.space.Enter()
	defer v.b.space.Leave(in)
	taken, _, _ := v.b.Receive(dma.NewCopier(), p)
	return taken
}

// next gives a packet with the number psn, and increases psn by 1.
func (v *victim) next(h header, payload ...byte) {
	v.t.Helper()
	h.psn = v.psn
	v.psn = after(v.psn, 1)
	v.give(h, payload...)
}

// drain takes the frames that b has to send. It passes the innocent queue pair's frames to a, and returns the others
// (none with mute).
func (v *victim) drain() []answered {
	v.t.Helper()
	v.sent = v.sent[:0]
	for v.frame() {
	}
	return v.sent
}

// frame does what drain does for one frame; false: b has none to send.
func (v *victim) frame() bool {
	v.b.TellAll()
	var p wire.Packet
	in := v.b.space.Enter()
	defer v.b.space.Leave(in)
	if !v.b.Next(0, &p) {
		return false
	}
	b := bytesOf(&p)
	var h header
	if !h.parse(b) {
		v.t.Fatalf("the victim sent what is no packet: % x", b)
	}
	if h.qpn != forgedQPN {
		v.pair.give(v.a, &p)
		return true
	}
	v.n++
	if !v.mute {
		v.sent = append(v.sent, answered{h, b[h.size : len(b)-icrcLen-int(h.pad)]})
	}
	return true
}

// only is drain with a check that it returns exactly one frame: an AETH with this syndrome and number.
func (v *victim) only(syndrome uint8, psn uint32) {
	v.t.Helper()
	got := v.drain()
	if len(got) != 1 || got[0].op != opAck || got[0].syndrome != syndrome || got[0].psn != psn {
		v.t.Fatalf("answered %+v, not one AETH %#x of %#x", got, syndrome, psn)
	}
}

// unharmed checks that both ends' memories are as expected, and that the innocent queue pairs work.
func (v *victim) unharmed() {
	v.t.Helper()
	v.same()
	v.ids++
	const start, n = 700_000, 3000
	for i := range n {
		v.a.mem[start+i] = byte(i) ^ byte(v.ids)
		v.wantA[start+i] = v.a.mem[start+i]
	}
	copy(v.want[start:], v.a.mem[start:start+n])
	copy(v.wantA[start+n:start+2*n], v.want[start+n:])
	v.a.post(v.qa, control.WR{ID: v.ids, Op: control.WRWrite, Key: v.b.mr, Remote: base + start,
		SGEs: []control.SGE{v.a.sge(start, n)}},
		control.WR{ID: v.ids, Op: control.WRRead, Flags: control.WRSignaled, Key: v.b.mr, Remote: base + start + n,
			SGEs: []control.SGE{v.a.sge(start+n, n)}})
	for range 200 {
		v.step(v.a, v.b)
		v.drain()
	}
	want := control.WC{ID: v.ids, QPN: v.qa, Op: control.WRRead, Len: n}
	if got := v.a.poll(); len(got) != 1 || got[0] != want {
		v.t.Fatalf("the innocent queue pair: %+v", got)
	}
	v.same()
}

func (v *victim) same() {
	v.t.Helper()
	for i, d := range []*end{v.a, v.b} {
		want := [][]byte{v.wantA, v.want}[i]
		if !bytes.Equal(d.mem, want) {
			for k := range want {
				if d.mem[k] != want[k] {
					v.t.Fatalf("end %d: byte %d is %#x, not %#x", i, k, d.mem[k], want[k])
				}
			}
		}
	}
}

func (v *victim) state(want control.QPState, cause control.WCStatus) {
	v.t.Helper()
	s := testkit.Must(v.b.QPStatus(v.qpn))(v.t)
	if s.State != want || s.Cause != cause {
		v.t.Fatalf("state %d (cause %d), not %d (%d): %+v", s.State, s.Cause, want, cause, s)
	}
}

func (v *victim) recv(id uint64, sges ...control.SGE) {
	v.t.Helper()
	testkit.OK(v.t, v.b.PostRecv(control.Post{QPN: v.qpn, WRs: []control.WR{{ID: id, Op: control.WRRecv, SGEs: sges}}}))
}

// fill returns n bytes of payload.
func fill(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*3 + 1)
	}
	return b
}

func (v *victim) later() {
	time.Sleep(time.Millisecond) // of the bubble's time
	synctest.Wait()
}
