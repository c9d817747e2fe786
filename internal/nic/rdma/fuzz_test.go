package rdma

import (
	"encoding/binary"
	"slices"
	"testing"

	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/wire"
)

// Offsets of pieces of the victim's memory in FuzzReceive, and their length in bytes.
const (
	fuzzWrite = 10_000 // the peer may write there
	fuzzRead  = 20_000 // the peer may only read
	fuzzRecv  = 30_000 // receives are posted for the first 1000 bytes
	fuzzInto  = 40_000 // destination of a READ, and source of a WRITE
	fuzzLen   = 2000
)

type reader struct{ b []byte }

func (r *reader) byte() (v byte) {
	if len(r.b) > 0 {
		v, r.b = r.b[0], r.b[1:]
	}
	return v
}

func (r *reader) u16() uint16 { return uint16(r.byte())<<8 | uint16(r.byte()) }

func (r *reader) take(n int) (b []byte) {
	n = min(n, len(r.b))
	b, r.b = r.b[:n], r.b[n:]
	return b
}

// FuzzReceive passes packets of any form to an Engine with a connected queue pair. Only memory that the peer may write,
// of receives and of the READ is written, and none by a packet with a wrong ICRC.
func FuzzReceive(f *testing.F) {
	v := newVictim(f, nil)
	const (
		localWrite  = control.AccessLocalWrite
		remoteWrite = control.AccessRemoteWrite
		remoteRead  = control.AccessRemoteRead
	)
	keys := []uint32{v.b.guest(localWrite|remoteWrite, partVA, fuzzWrite, fuzzLen), v.b.guest(remoteRead, partVA,
		fuzzRead, fuzzLen),
		v.b.guest(localWrite, partVA, fuzzRecv, fuzzLen), v.b.guest(localWrite, partVA, fuzzInto, fuzzLen), 0}
	ours := func(key uint32, off, n uint32) control.SGE {
		return control.SGE{VA: partVA + uint64(off), Len: n, Key: key}
	}
	writable := [][2]int{{fuzzWrite, fuzzWrite + fuzzLen}, {fuzzRecv, fuzzRecv + 1000}, {fuzzInto, fuzzInto + 600}}
	innocent := func(b []byte) []byte { // all memory except the writable pieces
		b = slices.Clone(b)
		for _, w := range writable {
			clear(b[w[0]:w[1]])
		}
		return b
	}
	rest := innocent(v.b.mem)
	structured := func(op byte, psn int8, key, va byte, n uint16, payload int) []byte {
		return []byte{0, op, byte(psn), key, va, byte(n >> 8), byte(n), byte(payload >> 8), byte(payload), 0}
	}
	f.Add(slices.Concat(structured(opWriteOnly, 0, 0, 0, 100, 100), structured(opReadRequest, 1, 1, 5, 600, 0)))
	f.Add(slices.Concat(structured(opWriteFirst, 0, 0, 0, 600, 256), structured(opWriteMiddle, 1, 0, 0, 0, 256),
		structured(opWriteLastImm, 2, 0, 0, 0, 88)))
	f.Add(slices.Concat(structured(opSendFirst, 0, 0, 0, 0, 256), structured(opSendLast, 1, 0, 0, 0, 200),
		structured(opSendOnly, 2, 0, 0, 0, 500)))
	f.Add(slices.Concat(structured(opReadRespFirst, 0, 0, 0, 0, 256), structured(opReadRespMid, 1, 0, 0, 0, 256),
		structured(opReadRespLast, 2, 0, 0, 0, 88), structured(opAck, 4, 0, 0, 0, 0)))
	f.Add(append([]byte{1, 0, 40}, v.bytes(v.reth(opWriteOnly, 0, 8), fill(8))...))
	f.Add(append([]byte{2, 0, 40}, v.bytes(v.reth(opWriteOnly, 0, 8), fill(8))...))
	f.Fuzz(func(t *testing.T, input []byte) {
		v.t, v.a.t, v.b.t = t, t, t
		v.qpn = v.another(func(p *control.QPPath) { p.Timeout = 31 })
		defer func() {
			testkit.OK(t, v.b.DelQP(v.qpn))
			for v.frame() {
			}
			for len(v.b.poll()) > 0 {
			}
		}()
		v.recv(1, ours(keys[2], 0, 300), ours(keys[2], 300, 200))
		v.recv(2, ours(keys[2], 500, 500))
		v.b.post(v.qpn, control.WR{ID: 1, Op: control.WRRead, Key: 1, SGEs: []control.SGE{ours(keys[3], 0, 600)}},
			control.WR{ID: 2, Op: control.WRWrite, Key: 1, SGEs: []control.SGE{ours(keys[3], 0, 600)}})
		v.mute = true
		r := &reader{input}
		for range 100 {
			if len(r.b) == 0 {
				break
			}
			mode := r.byte()
			var p *wire.Packet
			if mode%3 == 0 {
				p = v.fuzzed(r, keys)
			} else {
				b := slices.Clone(r.take(int(r.u16() % 1200)))
				if len(b) >= 8 && mode&4 != 0 {
					binary.BigEndian.PutUint32(b[4:], v.qpn)
				}
				p = v.raw(v.ip, v.b.ip, b, mode%3 == 1)
			}
			var before []byte
			body := bytesOf(p)
			bad := len(body) < bthLen+icrcLen ||
				icrcByBits(append(slices.Clone(p.Header),
					body[:len(body)-icrcLen]...)) != binary.LittleEndian.Uint32(body[len(body)-icrcLen:])
			if bad {
				before = slices.Clone(v.b.mem[:64<<10])
			}
			taken := v.take(p)
			if bad && (taken || !slices.Equal(before, v.b.mem[:64<<10])) {
				t.Fatalf("a wrong ICRC: taken: %v", taken)
			}
			n := v.n
			for v.frame() && v.n-n <= 1000 {
			}
			if v.n-n > 1000 {
				t.Fatal("more than 1000 frames for one")
			}
		}
		if !slices.Equal(innocent(v.b.mem), rest) {
			t.Fatal("memory is written that the peer has no key for")
		}
	})
}

// fuzzed makes a packet with a supported operation code, a right ICRC, and mostly right other fields.
func (v *victim) fuzzed(r *reader, keys []uint32) *wire.Packet {
	op := r.byte() % numOps
	h := header{op: op, qpn: v.qpn, ackReq: true, psn: after(forgedPSN, uint32(int32(int8(r.byte())))&psnMask)}
	if shapes[op].response {
		h.psn = after(h.psn, (ownPSN-forgedPSN)&psnMask)
	}
	h.key = keys[int(r.byte())%len(keys)]
	h.va = partVA + uint64(int64(int8(r.byte())))
	h.dmaLen = uint32(r.u16())
	n := int(r.u16() % 1100)
	h.syndrome = r.byte()
	if op != opAck && h.syndrome&synKind != 0 || op == opAck && h.syndrome == 0 {
		h.syndrome = synAck
	}
	return v.packet(h, fill(n))
}

// FuzzCommands runs commands on an Engine, mostly with ids and keys that exist. After them, the Engine's sums fit its
// tables, and Reset leaves nothing.
func FuzzCommands(f *testing.F) {
	d := newEnd(f, 1)
	f.Add([]byte{0, 3, 1, 4, 5, 7, 8, 9, 2, 6})
	f.Add([]byte{0, 0, 1, 1, 2, 4, 5, 6, 7, 7, 8, 9, 10, 12, 3, 11, 13, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12})
	f.Fuzz(func(t *testing.T, input []byte) {
		d.Reset()
		d.t = t
		defer d.Reset()
		r := &reader{input}
		ids := map[string][]uint32{}
		got := func(kind string, id uint32, err error) {
			if err == nil {
				ids[kind] = append(ids[kind], id)
			}
		}
		some := func(kind string) uint32 {
			n := int(r.byte())
			if list := ids[kind]; len(list) > 0 && n < 250 {
				return list[n%len(list)]
			}
			return uint32(n)
		}
		sges := func() (list []control.SGE) {
			for range r.byte() % 5 {
				list = append(list, control.SGE{VA: base + uint64(r.u16()), Len: uint32(r.u16()), Key: some("mr")})
			}
			return list[:min(len(list), control.MaxSGEs)]
		}
		for range 200 {
			if len(r.b) == 0 {
				break
			}
			switch r.byte() % 14 {
			case 0:
				id, err := d.AddPD()
				got("pd", id, err)
			case 1:
				id, err := d.AddCQ(uint32(r.byte()))
				got("cq", id, err)
			case 2:
				m := control.MR{PD: some("pd"), Kind: control.MRKind(r.byte() % 5), Access: r.byte() % 9, VA: base,
					Len: uint64(r.u16())}
				for range r.byte() % 4 {
					m.Ranges = append(m.Ranges, control.MRRange{IOVA: uint64(r.u16()), Len: uint64(r.u16())})
				}
				id, err := d.AddMR(m)
				got("mr", id, err)
			case 3:
				id, err := d.AddQP(control.QP{PD: some("pd"), SendCQ: some("cq"), RecvCQ: some("cq"), MaxSend: uint32(r.byte()),
					MaxRecv: uint32(r.byte())})
				got("qp", id, err)
			case 4:
				_ = d.ConnectQP(control.QPPath{QPN: some("qp"), RemoteQPN: 5, Local: d.ip, Remote: d.ip, MAC: wire.MAC{2},
					MTU:     256 << (r.byte() % 6),
					Timeout: 31, Retries: 7, Reads: r.byte() % 20, ReadDepth: r.byte() % 20})
			case 5:
				_ = d.PostSend(control.Post{QPN: some("qp"), WRs: []control.WR{{Op: control.WROp(r.byte() % 8),
					Flags: r.byte() % 9, SGEs: sges(),
					Key: uint32(r.byte() % 2), Remote: uint64(r.byte() % 2)}}})
			case 6:
				_ = d.PostRecv(control.Post{QPN: some("qp"), WRs: []control.WR{{Op: control.WRRecv, SGEs: sges()}}})
			case 7:
				_, _ = d.PollCQ(control.Poll{CQ: some("cq"), Max: uint32(r.byte())})
			case 8:
				_ = d.DelQP(some("qp"))
			case 9:
				_ = d.DelMR(some("mr"))
			case 10:
				_ = d.DelCQ(some("cq"))
			case 11:
				_ = d.DelPD(some("pd"))
			case 12:
				_ = d.MoreMR(control.MRMore{Key: some("mr"), Ranges: []control.MRRange{{IOVA: uint64(r.u16()),
					Len: uint64(r.u16())}}})
			case 13:
				var p wire.Packet
				in := d.space.Enter()
				for range 300 {
					if !d.Next(0, &p) {
						break
					}
				}
				d.space.Leave(in)
			}
		}
		places, qps, mrs, ranges := 0, 0, 0, 0
		for id, c := range d.cqs {
			places += len(c.ring)
			if c.id != id || c.n > c.reserved || c.reserved > len(c.ring) {
				t.Fatalf("completion queue %d: %d completions, %d places taken of %d", id, c.n, c.reserved, len(c.ring))
			}
		}
		for i := range d.qps.slots {
			if q := d.qps.slots[i].Load(); q != nil {
				qps++
				places += len(q.req.wqes) + len(q.recvs)
			}
		}
		for i := range d.mrs.slots {
			if m := d.mrs.slots[i].Load(); m != nil {
				mrs++
				ranges += len(m.ranges)
			}
		}
		if places != d.taken || qps != d.qps.count || mrs != d.mrs.count || ranges != d.ranges ||
			int(d.active.Load()) != qps {
			t.Fatalf("%d places, not %d; %d queue pairs, not %d; %d MRs, not %d; %d ranges, not %d", d.taken, places,
				d.qps.count, qps,
				d.mrs.count, mrs, d.ranges, ranges)
		}
		d.Reset()
		if d.taken != 0 || d.ranges != 0 || d.qps.count != 0 || d.mrs.count != 0 || d.Active() {
			t.Fatal("Reset leaves something")
		}
	})
}
