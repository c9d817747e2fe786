package gve

import (
	"encoding/hex"
	"testing"
	"testing/quick"

	"vnic.dev/vnic/internal/testkit"
)

// The bytes come from gcc, for fields of these widths with the same values (gve_desc_dqo.h).
//
// Invariant: nic/gve: Layouts are Linux's bit-fields.
func TestLayouts(t *testing.T) {
	full := rxCompl{bad: true, ptype: 0x232, length: 0x1abc, headerLen: 0x142, split: true, overflow: true, eop: true,
		checked: true,
		ipBad:   true, l4Bad: true, segLen: 1448, id: 0xbeef, hash: 0x12345678}
	var rc [rxComplLen]byte
	le.PutUint32(rc[4:], full.encode(rc[:])|rxGeneration)
	var p, tso [txDescLen]byte
	packet := txDesc{kind: txPacket, addr: 0x1122334455667788, eop: true, csum: true, report: true, tag: 0x7abc,
		length: 0x3001}
	packet.encode(&p)
	super := txDesc{kind: txTSO, total: 0xabcdef, mss: 1448, headerLen: 54, tso: true}
	super.encode(&tso)
	var done, read [txComplLen]byte
	le.PutUint32(done[:], txComplWord(0x405, txPacketDone, 0x7abc)|txGeneration)
	le.PutUint32(read[:], txComplWord(0x405, txDescDone, 33))
	for name, c := range map[string]struct {
		got  []byte
		want string
	}{
		"rx completion": {rc[:], "01043202bc5a420d3f000000efbea80578563412000000000000000000000000"},
		"tx packet":     {p[:], "8877665544332211ec000000bc7a0130"},
		"tx TSO":        {tso[:], "efcdab00a80536002500000000000000"},
		"packet done":   {done[:], "0594bc7a00000000"},
		"desc done":     {read[:], "0524210000000000"},
	} {
		testkit.Equal(t, name, hex.EncodeToString(c.got), c.want)
	}
}

func TestDecodeIsEncodeBackwards(t *testing.T) {
	check := func(err error) {
		t.Helper()
		testkit.NoError(t, err)
	}
	check(quick.Check(func(id uint16, addr, header uint64) bool {
		want, got := rxBuf{id, addr, header}, rxBuf{}
		var b [rxBufLen]byte
		want.encode(&b)
		got.decode(&b)
		return got == want
	}, nil))
	check(quick.Check(func(flags uint16, ptype, length, header, seg, id uint16, hash uint32) bool {
		on := func(i int) bool { return flags>>i&1 != 0 }
		want := rxCompl{bad: on(0), ptype: ptype % ptypes, length: length & rxMaxLen, headerLen: header & rxMaxHdr,
			split:    on(1),
			overflow: on(2), eop: on(3), checked: on(4), ipBad: on(5), l4Bad: on(6), segLen: seg, id: id, hash: hash}
		var b [rxComplLen]byte
		var got rxCompl
		le.PutUint32(b[4:], want.encode(b[:]))
		return !got.decode(&b) && got == want
	}, nil))
	check(quick.Check(func(kind uint8, b [txDescLen]byte) bool {
		kinds := []uint8{txPacket, txTSO, txGeneral}
		b[8] = b[8]&^0x1f | kinds[int(kind)%len(kinds)]
		var d, again txDesc
		d.decode(&b)
		d.encode(&b)
		again.decode(&b)
		return d == again
	}, nil))
}
func (d *rxBuf) encode(b *[rxBufLen]byte) {
	*b = [rxBufLen]byte{}
	le.PutUint16(b[0:], d.id)
	le.PutUint64(b[8:], d.addr)
	le.PutUint64(b[16:], d.header)
}

func (c *rxCompl) decode(b *[rxComplLen]byte) (generation bool) {
	word := le.Uint32(b[4:])
	*c = rxCompl{bad: b[1]&rxError != 0, ptype: le.Uint16(b[2:]) & (ptypes - 1), length: uint16(word & rxMaxLen),
		headerLen: uint16(word >> 16 & rxMaxHdr), split: word&rxSplit != 0, overflow: b[8]&rxOverflow != 0,
		eop:     b[8]&rxEOP != 0,
		checked: b[8]&rxChecked != 0, ipBad: b[8]&rxIPBad != 0, l4Bad: b[8]&rxL4Bad != 0, id: le.Uint16(b[12:]),
		hash: le.Uint32(b[16:]), stamped: b[11]&rxStamped != 0, stamp: le.Uint32(b[28:])}
	if word&rxRSC != 0 {
		c.segLen = le.Uint16(b[14:])
	}
	return word&rxGeneration != 0
}

func (d *txDesc) encode(b *[txDescLen]byte) {
	*b = [txDescLen]byte{8: d.kind}
	switch d.kind {
	case txPacket:
		le.PutUint64(b[0:], d.addr)
		b[8] |= pick(d.eop, 1<<5) | pick(d.csum, 1<<6) | pick(d.report, 1<<7)
		le.PutUint16(b[12:], d.tag)
		le.PutUint16(b[14:], d.length)
	case txTSO:
		le.PutUint32(b[0:], d.total)
		le.PutUint16(b[4:], d.mss)
		b[6] = d.headerLen
		b[8] |= pick(d.tso, 1<<5)
	}
}
