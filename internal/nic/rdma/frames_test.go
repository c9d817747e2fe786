package rdma

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/wire"
	"vnic.dev/vnic/splitter"
)

// write returns a WRITE that the victim carries out if its frame is right.
func (v *victim) write() (h header, payload []byte) {
	return header{op: opWriteOnly, qpn: v.qpn, psn: v.psn, ackReq: true, va: base + 5000, key: v.b.mr, dmaLen: 97,
		pad: 3}, fill(97)
}

// Invariant: nic/rdma: A frame with a wrong ICRC, too short for its headers, or not from the peer
// has no effect and gets no answer.
func TestFramesThatAreDropped(t *testing.T) {
	bubble(t, func(t *testing.T) {
		v := newVictim(t, nil)
		h, payload := v.write()
		b := v.bytes(h, payload)
		counts := func() (icrc, unknown, malformed uint64) {
			c := testkit.Must(v.b.RDMACounts())(t)
			return c.ICRC, c.Unknown, c.Malformed
		}
		drop := func(name string, p *wire.Packet) {
			t.Helper()
			i, u, m := counts()
			if v.take(p) {
				t.Errorf("%s: it was taken", name)
			}
			if got := v.drain(); len(got) > 0 {
				t.Fatalf("%s: answered %+v", name, got)
			}
			if i2, u2, m2 := counts(); i2+u2+m2 != i+u+m+1 {
				t.Errorf("%s: it is not counted once", name)
			}
			v.same()
			v.state(control.QPReady, 0)
		}
		for n := range b {
			if n < int(h.length())+3+icrcLen { // longer ones would get a NAK: packets of a wrong length, with a right ICRC
				drop(fmt.Sprint("the first bytes: ", n), v.raw(v.ip, v.b.ip, b[:n], true))
			}
			drop(fmt.Sprint("the first bytes, ICRC and all: ", n), func() *wire.Packet {
				whole := bytesOf(v.raw(v.ip, v.b.ip, b, true))
				return v.raw(v.ip, v.b.ip, whole[:n], false)
			}())
		}
		for i := range b {
			for bit := range 8 {
				p := v.raw(v.ip, v.b.ip, b, true)
				body := bytesOf(p)
				body[i] ^= 1 << bit
				if i != 4 { // routers may change this byte (A17.3.3)
					drop(fmt.Sprintf("bit %d of byte %d is wrong", bit, i), with(p, body))
				}
			}
		}
		six := [2]netip.Addr{netip.MustParseAddr("::ffff:10.0.0.99"), netip.MustParseAddr("::ffff:10.0.0.2")}
		drop("another source", v.raw(netip.MustParseAddr("10.0.0.98"), v.b.ip, b, true))
		drop("another destination", v.raw(v.ip, netip.MustParseAddr("10.0.0.3"), b, true))
		drop("the other way round", v.raw(v.b.ip, v.ip, b, true))
		drop("IPv6", v.raw(six[0], six[1], b, true))
		for name, change := range map[string]func(b []byte){
			"version 1":               func(b []byte) { b[1] |= 1 },
			"another partition":       func(b []byte) { b[2] &^= 0x40 },
			"queue pair 0":            func(b []byte) { b[5], b[6], b[7] = 0, 0, 0 },
			"another queue pair":      func(b []byte) { b[7]++ },
			"another tag":             func(b []byte) { b[6]++ },
			"the innocent's":          func(b []byte) { b[5], b[6], b[7] = byte(v.qb>>16), byte(v.qb>>8), byte(v.qb) },
			"unreliable connection":   func(b []byte) { b[0] |= 0x20 },
			"reliable datagram":       func(b []byte) { b[0] |= 0x40 },
			"unreliable datagram":     func(b []byte) { b[0] |= 0x60 },
			"congestion":              func(b []byte) { b[0] = 0x81 },
			"extended transport":      func(b []byte) { b[0] |= 0xa0 },
			"a manufacturer's opcode": func(b []byte) { b[0] |= 0xc0 },
		} {
			c := slices.Clone(b)
			change(c)
			drop(name, v.raw(v.ip, v.b.ip, c, true))
		}
		for name, change := range map[string]func(m *splitter.Meta){
			"GSO of TCP": func(m *splitter.Meta) { m.GSOType, m.GSOSize = splitter.GSOTCPv4, 64 },
			"GSO of UDP": func(m *splitter.Meta) { m.GSOType, m.GSOSize = splitter.GSOUDPL4, 64 },
		} {
			p := v.raw(v.ip, v.b.ip, b, true)
			change(&p.Meta)
			drop(name, p)
		}
		// Frames to a queue pair that is not connected, and to a deleted one, are dropped.
		n := testkit.Must(v.b.AddQP(control.QP{PD: v.b.pd, SendCQ: v.b.cq, RecvCQ: v.b.cq, MaxSend: 1, MaxRecv: 1}))(t)
		for _, name := range []string{"not connected", "no more"} {
			h.qpn = n
			drop(name, v.raw(v.ip, v.b.ip, v.bytes(h, payload), true))
			if name == "not connected" {
				testkit.OK(t, v.b.DelQP(n))
			}
		}
		// The frame is taken although routers have changed these fields.
		p := v.raw(v.ip, v.b.ip, b, true)
		p.Header[15], p.Header[22], p.Header[24], p.Header[40] = 0xff, 3, 0, 0x55
		body := bytesOf(p)
		body[4] = 0xc0 // FECN, BECN
		if !v.take(with(p, body)) {
			t.Fatal("the frame is dropped")
		}
		copy(v.want[5000:], payload)
		v.only(synAck, v.psn)
		v.unharmed()
	})
}

// Invariant: nic/rdma: A request that this NIC does not support is refused by a NAK when it is the
// expected packet: the peer need not wait for a timeout.
func TestUnsupportedRequests(t *testing.T) {
	for name, op := range map[string]byte{"COMPARE & SWAP": 0x13, "FETCH & ADD": 0x14, "reserved": 0x15,
		"SEND LAST with invalidate": 0x16, "SEND ONLY with invalidate": 0x17, "reserved, 0x18": 0x18, "FLUSH": 0x1c,
		"ATOMIC WRITE": 0x1d, "the last one": 0x1f} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				v := newVictim(t, nil)
				v.recv(1, v.b.sge(0, 100))
				h := header{op: opWriteOnly, qpn: v.qpn, va: base, key: v.b.mr, dmaLen: 12, psn: after(v.psn, 3)}
				b := v.bytes(h, fill(12))
				b[0] = op
				v.take(v.raw(v.ip, v.b.ip, b, true)) // ahead of the expected packet: a sequence NAK
				v.only(nakSequence, v.psn)
				v.state(control.QPReady, 0)
				h.psn = v.psn
				b = v.bytes(h, fill(12))
				b[0] = op
				v.take(v.raw(v.ip, v.b.ip, b, true))
				v.only(nakInvalid, v.psn)
				v.state(control.QPError, control.WCRemoteInvalid)
				if got := v.b.poll(); len(got) != 1 || got[0].Status != control.WCFlushed {
					t.Errorf("completions %+v", got)
				}
				v.unharmed()
			})
		})
	}
	t.Run("the answer to an atomic operation", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			v := newVictim(t, nil)
			b := v.bytes(header{op: opAck, qpn: v.qpn, psn: v.psn, syndrome: synAck}, fill(8))
			b[0] = 0x12
			v.take(v.raw(v.ip, v.b.ip, b, true))
			if got := v.drain(); len(got) > 0 {
				t.Fatalf("answered %+v", got)
			}
			v.state(control.QPReady, 0)
			v.unharmed()
		})
	})
}
