package rdma

import (
	"fmt"
	"math"
	"testing"

	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/testkit"
)

// In this file a peer sends wrong requests, and right ones as a control.

// hostileKeys are keys of the victim's MRs, most of them of one piece of its memory.
type hostileKeys struct {
	part     uint32 // [partAt, partAt+partLen), all access
	noWrite  uint32
	noRead   uint32
	otherPD  uint32
	gone     uint32
	halfMade uint32
	high     uint32 // the highest addresses that an MR may have
	highVA   uint64
	unmapped uint32 // guest memory that does not exist
}

const (
	partAt  = 100_000
	partLen = 2000
	partVA  = 0x5000_0000
)

func newHostileKeys(v *victim) *hostileKeys {
	b := v.b
	k := &hostileKeys{}
	const all = control.AccessLocalWrite | control.AccessRemoteWrite | control.AccessRemoteRead
	k.part = b.guest(all, partVA, partAt, partLen)
	k.noWrite = b.guest(control.AccessLocalWrite|control.AccessRemoteRead, partVA, partAt, partLen)
	k.noRead = b.guest(control.AccessLocalWrite|control.AccessRemoteWrite, partVA, partAt, partLen)
	k.gone = b.guest(all, partVA, partAt, partLen)
	testkit.OK(v.t, b.DelMR(k.gone))
	k.halfMade = testkit.Must(b.AddMR(control.MR{PD: b.pd, Kind: control.MRGuest, Access: all, VA: partVA, Len: partLen,
		Ranges: []control.MRRange{{IOVA: partAt, Len: partLen - 1}}}))(v.t)
	k.highVA = math.MaxUint64 - partLen
	k.high = b.guest(all, k.highVA, partAt, partLen)
	k.unmapped = b.guest(all, partVA, memSize+4096, partLen)
	pd := b.pd
	b.pd = testkit.Must(b.AddPD())(v.t)
	k.otherPD = b.guest(all, partVA, partAt, partLen)
	b.pd = pd
	return k
}

// cases returns requests for n bytes at va with a key. write and read: such a WRITE or READ is allowed.
func (k *hostileKeys) cases() map[string]struct {
	key     uint32
	va      uint64
	n       uint32
	write   bool
	read    bool
	operate bool // refused with another NAK, because the memory does not exist
} {
	type c = struct {
		key     uint32
		va      uint64
		n       uint32
		write   bool
		read    bool
		operate bool
	}
	return map[string]c{
		"all of it":                       {k.part, partVA, partLen, true, true, false},
		"the first byte":                  {k.part, partVA, 1, true, true, false},
		"the last byte":                   {k.part, partVA + partLen - 1, 1, true, true, false},
		"nothing, with no key":            {0, 0, 0, true, true, false},
		"nothing at the end":              {k.part, partVA + partLen, 0, true, true, false},
		"no key":                          {0, partVA, 8, false, false, false},
		"the key's place only":            {k.part & 1023, partVA, 8, false, false, false},
		"another tag":                     {k.part ^ 1<<10, partVA, 8, false, false, false},
		"a key of another PD":             {k.otherPD, partVA, 8, false, false, false},
		"a key that is no more":           {k.gone, partVA, 8, false, false, false},
		"an MR that is not whole":         {k.halfMade, partVA, 8, false, false, false},
		"one byte before":                 {k.part, partVA - 1, 8, false, false, false},
		"one byte beyond":                 {k.part, partVA, partLen + 1, false, false, false},
		"one byte beyond the end":         {k.part, partVA + partLen - 7, 8, false, false, false},
		"a byte at the end":               {k.part, partVA + partLen, 1, false, false, false},
		"far below":                       {k.part, 0, 8, false, false, false},
		"a sum that wraps":                {k.part, math.MaxUint64 - 3, 8, false, false, false},
		"a sum that wraps into it":        {k.part, math.MaxUint64 - 255, 1 << 31, false, false, false},
		"no remote write":                 {k.noWrite, partVA, 8, false, true, false},
		"no remote read":                  {k.noRead, partVA, 8, true, false, false},
		"up to the end of all addresses":  {k.high, math.MaxUint64 - partLen, partLen, true, true, false},
		"beyond the end of all addresses": {k.high, math.MaxUint64 - 1, 2, false, false, false},
		"no memory behind it":             {k.unmapped, partVA, 8, false, false, true},
	}
}

// place returns the offset in the victim's memory of address va of the MR with this key; partAt if n is 0.
func (k *hostileKeys) place(key uint32, va uint64, n uint32) uint64 {
	switch {
	case n == 0:
		return partAt
	case key == k.high:
		return partAt + va - k.highVA
	}
	return partAt + va - partVA
}

// Invariant: nic/rdma: A WRITE or READ that its key does not allow for every byte is refused: nothing is written or
// sent.
func TestKeysOfAPeer(t *testing.T) {
	bubble(t, func(t *testing.T) {
		v := newVictim(t, nil)
		k := newHostileKeys(v)
		for name, c := range k.cases() {
			for _, read := range []bool{false, true} {
				name := fmt.Sprintf("%s, read: %v", name, read)
				v.t.Log(name)
				v.qpn, v.psn = v.another(nil), forgedPSN
				allowed := c.write
				if read {
					allowed = c.read
				}
				h := header{op: opWriteOnly, ackReq: true, va: c.va, key: c.key, dmaLen: c.n}
				data := fill(int(min(c.n, 256)))
				switch {
				case read:
					h.op, data = opReadRequest, nil
				case c.n > 256:
					h.op = opWriteFirst
				}
				before := v.psn
				v.next(h, data...)
				var got []answered
				if allowed && !read {
					base0 := k.place(c.key, c.va, c.n)
					for off := uint32(0); ; {
						copy(v.want[base0+uint64(off):][:min(c.n, partLen)], data)
						if off += uint32(len(data)); off == c.n {
							break
						}
						data = fill(int(min(c.n-off, 256)))
						op := uint8(opWriteMiddle)
						if off+uint32(len(data)) == c.n {
							op = opWriteLast
						}
						v.next(header{op: op, ackReq: true}, data...)
					}
				}
				got = append(got, v.drain()...)
				switch {
				case allowed && read:
					n := 0
					for _, a := range got {
						if a.op == opAck {
							t.Fatalf("answered %+v", a.header)
						}
						base0 := k.place(c.key, c.va, c.n)
						if string(a.payload) != string(v.want[base0+uint64(n):][:len(a.payload)]) {
							t.Fatal("wrong bytes are sent")
						}
						n += len(a.payload)
					}
					testkit.Equal(t, "bytes read", n, int(c.n))
					v.state(control.QPReady, 0)
				case allowed:
					if len(got) != 1 || got[0].syndrome != synAck || got[0].psn != after(v.psn, psnMask) {
						t.Fatalf("answered %+v", got)
					}
					v.state(control.QPReady, 0)
				default:
					want, cause := uint8(nakAccess), control.WCRemoteAccess
					if c.operate {
						want, cause = nakOperate, control.WCRemoteOperation
					}
					if len(got) != 1 || got[0].op != opAck || got[0].syndrome != want || got[0].psn != before {
						t.Fatalf("answered %+v, not a NAK %#x of %#x", got, want, before)
					}
					v.state(control.QPError, cause)
					v.next(header{op: opWriteOnly, ackReq: true, va: partVA, key: k.part, dmaLen: 4}, fill(4)...)
					if got := v.drain(); len(got) > 0 {
						t.Fatalf("a queue pair in error answers %+v", got)
					}
				}
				v.same()
				testkit.OK(t, v.b.DelQP(v.qpn))
			}
		}
		v.unharmed()
	})
}

// Requests with a wrong order, opcode or length are refused (9.9.3, table 57: class C).
func TestRequestsThatAreWrong(t *testing.T) {
	const start = 20_000
	reth := func(op uint8, n uint32) func(v *victim) header {
		return func(v *victim) header { return header{op: op, va: base + start, key: v.b.mr, dmaLen: n} }
	}
	plain := func(op uint8) func(v *victim) header { return func(*victim) header { return header{op: op} } }
	type packet struct {
		h func(v *victim) header
		n int
	}
	first, middle := packet{reth(opWriteFirst, 1000), 256}, packet{plain(opWriteMiddle), 256}
	sendFirst := packet{plain(opSendFirst), 256}
	for name, c := range map[string]struct {
		packets []packet // the last one is wrong, unless right is set
		right   bool     // all packets are right
		recv    control.WCStatus
	}{
		"WRITE": {[]packet{first, middle, middle, {plain(opWriteLast), 232}}, true, 0},
		"SEND":  {[]packet{sendFirst, {plain(opSendMiddle), 256}, {plain(opSendLast), 1}}, true, 0},

		"MIDDLE of a WRITE first":        {[]packet{middle}, false, control.WCFlushed},
		"LAST of a WRITE first":          {[]packet{{plain(opWriteLast), 8}}, false, control.WCFlushed},
		"LAST with immediate data first": {[]packet{{plain(opWriteLastImm), 8}}, false, control.WCFlushed},
		"MIDDLE of a SEND first":         {[]packet{{plain(opSendMiddle), 256}}, false, control.WCFlushed},
		"LAST of a SEND first":           {[]packet{{plain(opSendLast), 8}}, false, control.WCFlushed},
		"FIRST in a WRITE":               {[]packet{first, first}, false, control.WCFlushed},
		"ONLY in a WRITE":                {[]packet{first, {reth(opWriteOnly, 8), 8}}, false, control.WCFlushed},
		"SEND in a WRITE":                {[]packet{first, {plain(opSendOnly), 8}}, false, control.WCFlushed},
		"MIDDLE of a SEND in a WRITE":    {[]packet{first, {plain(opSendMiddle), 256}}, false, control.WCFlushed},
		"LAST of a SEND in a WRITE":      {[]packet{first, {plain(opSendLast), 8}}, false, control.WCFlushed},
		"READ in a WRITE":                {[]packet{first, {reth(opReadRequest, 8), 0}}, false, control.WCFlushed},
		"FIRST in a SEND":                {[]packet{sendFirst, sendFirst}, false, control.WCFlushed},
		"WRITE in a SEND":                {[]packet{sendFirst, {reth(opWriteOnly, 8), 8}}, false, control.WCFlushed},
		"MIDDLE of a WRITE in a SEND":    {[]packet{sendFirst, middle}, false, control.WCFlushed},
		"LAST of a WRITE in a SEND":      {[]packet{sendFirst, {plain(opWriteLast), 8}}, false, control.WCFlushed},
		"READ in a SEND":                 {[]packet{sendFirst, {reth(opReadRequest, 8), 0}}, false, control.WCFlushed},
		"MIDDLE behind a whole WRITE":    {[]packet{{reth(opWriteOnly, 8), 8}, middle}, false, control.WCFlushed},
		"short FIRST":                    {[]packet{{reth(opWriteFirst, 1000), 252}}, false, control.WCFlushed},
		"long FIRST":                     {[]packet{{reth(opWriteFirst, 1000), 260}}, false, control.WCFlushed},
		"FIRST of what is one packet":    {[]packet{{reth(opWriteFirst, 256), 256}}, false, control.WCFlushed},
		"FIRST of more than 2 GiB":       {[]packet{{reth(opWriteFirst, 1<<31+1), 256}}, false, control.WCFlushed},
		"short MIDDLE":                   {[]packet{first, {plain(opWriteMiddle), 255}}, false, control.WCFlushed},
		"MIDDLE of nothing":              {[]packet{first, {plain(opWriteMiddle), 0}}, false, control.WCFlushed},
		"LAST of nothing": {[]packet{first, middle, middle, {plain(opWriteLast), 0}}, false,
			control.WCFlushed},
		"short LAST": {[]packet{first, middle, middle, {plain(opWriteLast), 231}}, false,
			control.WCFlushed},
		"long LAST": {[]packet{first, middle, middle, {plain(opWriteLast), 233}}, false,
			control.WCFlushed},
		"LAST too soon":                   {[]packet{first, middle, {plain(opWriteLast), 256}}, false, control.WCFlushed},
		"MIDDLE where the LAST should be": {[]packet{first, middle, middle, middle}, false, control.WCFlushed},
		"ONLY shorter than it says":       {[]packet{{reth(opWriteOnly, 9), 8}}, false, control.WCFlushed},
		"ONLY longer than it says":        {[]packet{{reth(opWriteOnly, 7), 8}}, false, control.WCFlushed},
		"ONLY longer than the MTU":        {[]packet{{reth(opWriteOnly, 260), 260}}, false, control.WCFlushed},
		"ONLY of nothing, with payload":   {[]packet{{reth(opWriteOnly, 0), 8}}, false, control.WCFlushed},
		"READ with payload":               {[]packet{{reth(opReadRequest, 8), 8}}, false, control.WCFlushed},
		"READ of more than 2 GiB":         {[]packet{{reth(opReadRequest, 1<<31+1), 0}}, false, control.WCFlushed},
		"READ of all of 32 bits":          {[]packet{{reth(opReadRequest, math.MaxUint32), 0}}, false, control.WCFlushed},
		"short FIRST of a SEND":           {[]packet{{plain(opSendFirst), 4}}, false, control.WCFlushed},
		"LAST of nothing of a SEND":       {[]packet{sendFirst, {plain(opSendLast), 0}}, false, control.WCFlushed},
		"long LAST of a SEND":             {[]packet{sendFirst, {plain(opSendLast), 260}}, false, control.WCFlushed},
		"long SEND":                       {[]packet{{plain(opSendOnly), 260}}, false, control.WCFlushed},
		"SEND longer than the receive": {[]packet{sendFirst, {plain(opSendMiddle), 256}, {plain(opSendMiddle), 256},
			{plain(opSendLast), 133}}, false, control.WCLocalLength},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				v := newVictim(t, nil)
				const into, room = 60_000, 900
				v.recv(7, v.b.sge(into, 400), v.b.sge(into+500, room-400))
				v.recv(8)
				off := 0
				for i, p := range c.packets {
					h := p.h(v)
					right := c.right || i < len(c.packets)-1
					if right {
						for j, x := range fill(p.n) {
							switch place := off + j; {
							case h.op >= opWriteFirst:
								v.want[start+place] = x
							case place < 400:
								v.want[into+place] = x
							default:
								v.want[into+100+place] = x
							}
						}
						off += p.n
					}
					h.ackReq = true
					v.next(h, fill(p.n)...)
					if right {
						v.only(synAck, after(v.psn, psnMask))
					}
				}
				if c.right {
					v.state(control.QPReady, 0)
					v.unharmed()
					return
				}
				v.only(nakInvalid, after(v.psn, psnMask))
				v.state(control.QPError, control.WCRemoteInvalid)
				want := []control.WC{{ID: 7, QPN: v.qpn, Op: control.WRRecv, Status: c.recv},
					{ID: 8, QPN: v.qpn, Op: control.WRRecv, Status: control.WCFlushed}}
				got := v.b.poll()
				if len(got) > 2 && c.recv == control.WCFlushed { // another completion came first
					got = got[1:]
				}
				if len(got) != 2 || got[0] != want[0] || got[1] != want[1] {
					t.Errorf("completions %+v, not %+v", got, want)
				}
				v.unharmed()
			})
		})
	}
}
