package gve

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/nic"
	"vnic.dev/vnic/internal/nic/nictest"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/splitter"
)

func (c *ctl) flow(op uint16, r flowRule, loc uint32) status {
	c.Helper()
	b, err := binary.Append(nil, be, flowCommand{Op: op, Rule: r, Loc: loc})
	c.OK(err)
	return c.command(opExtended, uint32(opConfigureFlowRule), uint32(len(b)), c.Put(b))
}

func (c *ctl) query(what uint16, first uint32, room uint64) (st status, count uint32, reply []byte) {
	c.Helper()
	to := c.alloc(int(room))
	st = c.command(opQueryFlowRules, what, uint16(0), first, room, to)
	h := c.bytes(to, queryHeadLen)
	n, length := be.Uint32(h[8:]), be.Uint32(h[12:])
	size := map[uint16]uint32{queryRules: queriedRuleLen, queryIDs: 4}[what]
	if st == statusPassed && (length != queryHeadLen+n*size || uint64(length) > room || be.Uint32(h[4:]) != nic.MaxRules) {
		c.Errorf("query %d: reply %x for room of %d", what, h, room)
	}
	return st, be.Uint32(h[0:]), c.bytes(to, int(length))[min(queryHeadLen, length):]
}

// places asks for the locations of all rules, as the driver does (gve_get_flow_rule_ids).
func (c *ctl) places(room uint64) (locs []uint32) {
	c.Helper()
	for first := uint32(0); ; {
		st, _, reply := c.query(queryIDs, first, room)
		if st != statusPassed {
			c.Fatal(st)
		}
		if len(reply) == 0 {
			return locs
		}
		for ; len(reply) > 0; reply = reply[4:] {
			locs = append(locs, be.Uint32(reply))
		}
		first = locs[len(locs)-1] + 1
	}
}

func (c *ctl) placesAre(room uint64, want ...uint32) {
	c.Helper()
	if locs := c.places(room); !slices.Equal(locs, want) {
		c.Errorf("rules at %d, not %d", locs, want)
	}
}

func (c *ctl) noRules() {
	c.Helper()
	rules, err := c.dev.port.Flows()
	c.OK(err)
	testkit.Equal(c, "rules", len(rules), 0)
}

func tcp4(port uint16, queue uint16) (r flowRule) {
	r.set(&control.FlowRule{Proto: 6, DstPort: port, Queue: queue})
	return r
}

// spi makes a rule of flow type kind for the SPI n, or for the source port n>>16 and the destination port n&0xffff.
func spi(kind uint16, n uint32) (r flowRule) {
	r.Kind, r.Mask.Ports = kind, [4]byte{0xff, 0xff, 0xff, 0xff}
	be.PutUint32(r.Key.Ports[:], n)
	return r
}

// The flow types have the driver's numbers (enum gve_adminq_flow_type).
func TestFlowTypes(t *testing.T) {
	c := newUp(t, 2, 0)
	for kind, want := range []control.FlowRule{
		{Proto: 6, SrcPort: 0x1234, DstPort: 0x5678}, {Proto: 17, SrcPort: 0x1234, DstPort: 0x5678},
		{Proto: 132, SrcPort: 0x1234, DstPort: 0x5678}, {Proto: 51, SrcPort: 0x1234, DstPort: 0x5678},
		{Proto: 50, SrcPort: 0x1234, DstPort: 0x5678},
		{Proto: 6, IPv6: true, SrcPort: 0x1234, DstPort: 0x5678}, {Proto: 17, IPv6: true, SrcPort: 0x1234, DstPort: 0x5678},
		{Proto: 132, IPv6: true, SrcPort: 0x1234, DstPort: 0x5678}, {Proto: 51, IPv6: true, SrcPort: 0x1234, DstPort: 0x5678},
		{Proto: 50, IPv6: true, SrcPort: 0x1234, DstPort: 0x5678},
	} {
		r := spi(uint16(kind), 0x12345678)
		testkit.Equal(t, fmt.Sprint("type ", kind), c.flow(flowAdd, r, 0), statusPassed)
		rules, err := c.dev.port.Flows()
		c.OK(err)
		if want.ID = rules[0].ID; len(rules) != 1 || rules[0] != want {
			t.Errorf("type %d: %+v", kind, rules)
		}
		if _, _, reply := c.query(queryRules, 0, 4096); decode[flowRule](reply[4:]) != r {
			t.Errorf("type %d comes back as %+v", kind, decode[flowRule](reply[4:]))
		}
	}
	// Linux 7.2 sends an SPI over IPv6 without its mask.
	r := spi(9, 77)
	r.Mask = flowSpec{}
	testkit.Equal(t, "an SPI without its mask", c.flow(flowAdd, r, 0), statusPassed)
	if rules, _ := c.dev.port.Flows(); rules[0].SPI() != 77 {
		t.Errorf("%+v", rules)
	}
}

// Invariant: nic/gve: Flow rules and RSS of the admin queue are the port's, and QUERY_RSS returns
// what is used.
func TestFlowRules(t *testing.T) {
	c := newUp(t, 4, 256)
	p := c.dev.port
	v4, v6 := netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("fd00::2")
	rules := []control.FlowRule{
		{Proto: 6, Src: v4, Dst: netip.MustParseAddr("10.0.0.1"), SrcPort: 1000, DstPort: 2000, Queue: 1},
		{Proto: 17, Dst: v4, Queue: 2},
		{Proto: 6, IPv6: true, Src: v6, DstPort: 2000, Queue: 3},
		{Proto: 17, IPv6: true, SrcPort: 53, Queue: 0},
		{Proto: 132, Src: v4, SrcPort: 7, DstPort: 8, Queue: 1}, {Proto: 132, IPv6: true, Dst: v6, Queue: 2},
		{Proto: 50, SrcPort: 1, DstPort: 0, Queue: 3}, {Proto: 51, Dst: v4, DstPort: 9, Queue: 1},
		{Proto: 50, IPv6: true, Src: v6, SrcPort: 0xffff, DstPort: 0xffff}, {Proto: 51, IPv6: true, Dst: v6, Queue: 1},
	}
	for i, r := range rules {
		var fr flowRule
		fr.set(&r)
		testkit.Equal(t, fmt.Sprint("rule ", i), c.flow(flowAdd, fr, uint32(511-i)), statusPassed)
	}
	got, err := p.Flows()
	c.OK(err)
	for i := range got {
		got[i].ID = 0
	}
	if !slices.Equal(got, rules) {
		t.Errorf("rules %+v, not %+v", got, rules)
	}
	_, n, reply := c.query(queryRules, 503, 4096)
	if n != 10 || len(reply) != 9*queriedRuleLen {
		t.Fatalf("%d rules, %d bytes", n, len(reply))
	}
	for i := range 9 {
		raw := reply[i*queriedRuleLen:]
		fr := decode[flowRule](raw[4:])
		r, err := fr.rule()
		if loc := be.Uint32(raw); err != nil || loc != uint32(503+i) || r != rules[8-i] {
			t.Errorf("rule at %d: %+v, %v", loc, r, err)
		}
	}
	if st, n, reply := c.query(queryStats, 0, queryHeadLen); st != statusPassed || n != 10 || len(reply) != 0 {
		t.Errorf("statistics: %v, %d rules, %d bytes", st, n, len(reply))
	}
	for loc := range uint32(6) {
		testkit.Equal(t, "status", c.flow(flowDel, flowRule{}, 502+loc), statusPassed)
	}
	c.placesAre(4096, 508, 509, 510, 511)
	c.placesAre(queryHeadLen+4, 508, 509, 510, 511)
	// A rule of the control channel is listed and can be deleted.
	id, err := p.AddFlow(control.FlowRule{Proto: 6, DstPort: 77, Queue: 1})
	c.OK(err)
	c.placesAre(4096, 0, 508, 509, 510, 511)
	testkit.Equal(t, "status", c.flow(flowAdd, tcp4(78, 1), 1), statusPassed)
	c.OK(p.DelFlow(id))
	c.placesAre(4096, 1, 508, 509, 510, 511)
	if _, err = p.AddFlow(control.FlowRule{Proto: 6, DstPort: 79, Queue: 1}); err != nil {
		t.Error(err)
	}
	testkit.Equal(t, "status", c.flow(flowDel, flowRule{}, 0), statusPassed)
	testkit.Equal(t, "deleted twice", c.flow(flowDel, flowRule{}, 0), statusNotFound)
	// A rule replaces another one at its location; a refused one leaves it.
	testkit.Equal(t, "status", c.flow(flowAdd, tcp4(80, 2), 511), statusPassed)
	testkit.Equal(t, "the same flow at two places", c.flow(flowAdd, tcp4(80, 3), 510), statusAlreadyExists)
	c.placesAre(4096, 1, 508, 509, 510, 511)
	testkit.Equal(t, "status", c.flow(flowReset, flowRule{}, 0), statusPassed)
	c.noRules()
	// Linux would read the last rule of an empty list.
	if st, _, _ := c.query(queryRules, 0, 4096); st != statusNotFound {
		t.Errorf("rules when there are none: %v", st)
	}
	c.placesAre(4096)
}

// Invariant: nic/gve: A flow rule of any type steers its frames, and only those, to its queue.
func TestRulesSteerFrames(t *testing.T) {
	w := newWorld(t)
	const l4v4, l4v6, spiLow = 34, 54, 0x0a0b0c0d
	for kind := range uint16(10) {
		proto, v6 := flowKinds[kind].Proto, flowKinds[kind].IPv6
		f := nictest.Make(w.B.mac, w.A.mac, nictest.Spec{Payload: 100, V6: v6})
		f.Partial = false
		off := l4v4
		if v6 {
			off = l4v6
			f.Header[20] = proto // next header
		} else {
			f.Header[23] = proto
		}
		l4 := f.Header[off:]
		rule := spi(kind, 1000<<16|2000) // ports, or the SPI of ESP at the same place
		switch proto {
		case splitter.ProtoUDP:
			be.PutUint16(l4[4:], uint16(len(l4)+len(f.Payload)))
		case splitter.ProtoAH:
			l4[0], l4[1] = 59, 3 // no next header; the authentication header has (3 + 2) x 4 bytes
			be.PutUint32(l4[4:], spiLow)
			rule = spi(kind, spiLow)
		}
		if !v6 {
			f.Header[24], f.Header[25] = 0, 0
			be.PutUint16(f.Header[24:], ^splitter.Sum(f.Header[14:34], 0))
		}
		name := fmt.Sprint("type ", kind)
		rule.Queue = 2
		goes := func(q int) {
			t.Helper()
			for i := range 3 {
				w.B.startRx(i, false)
			}
			w.B.Post(q, 1)
			w.A.Send(0, f)
			if got := w.B.Receive(q); len(got.Header) != len(f.Header)+len(f.Payload) {
				t.Errorf("%s: %d bytes on queue %d", name, len(got.Header), q)
			}
		}
		goes(0)
		testkit.Equal(t, name, w.B.flow(flowAdd, rule, 7), statusPassed)
		goes(2)
		rule.Key.Ports[3]++
		testkit.Equal(t, name, w.B.flow(flowAdd, rule, 7), statusPassed)
		goes(0)
		rule.Key.Ports[3]--
		rule.Kind = (kind + 5) % 10 // of the other IP version
		testkit.Equal(t, name, w.B.flow(flowAdd, rule, 7), statusPassed)
		goes(0)
		testkit.Equal(t, name, w.B.flow(flowDel, rule, 7), statusPassed)
	}
	w.Moves(t)
}

// A driver reads a full table of rules by several commands.
func TestFlowRulesInPages(t *testing.T) {
	c := newConfigured(t, 2)
	for i := range nic.MaxRules {
		c.Next = 64*slotLen + 4096
		if st := c.flow(flowAdd, tcp4(uint16(i+1), 1), uint32(nic.MaxRules-1-i)); st != statusPassed {
			t.Fatalf("rule %d: %v", i, st)
		}
	}
	testkit.Equal(t, "one in the place of another", c.flow(flowAdd, tcp4(5000, 1), 0), statusPassed)
	if locs := c.places(4096); len(locs) != nic.MaxRules || !slices.IsSorted(locs) {
		t.Errorf("%d places", len(locs))
	}
	for first := uint32(0); first < nic.MaxRules; {
		st, n, reply := c.query(queryRules, first, 4096)
		if want := min(46, nic.MaxRules-first); st != statusPassed || n != nic.MaxRules ||
			len(reply) != int(want)*queriedRuleLen {
			t.Fatalf("from %d: %v, %d rules, %d bytes", first, st, n, len(reply))
		}
		first += uint32(len(reply) / queriedRuleLen)
	}
	c.reset()
	c.noRules()
}

func TestFlowRefusals(t *testing.T) {
	c := newCtl(t, queues(2))
	c.start()
	change := func(f func(*flowRule)) flowRule {
		r := tcp4(80, 1)
		f(&r)
		return r
	}
	for name, x := range map[string]struct {
		op   uint16
		r    flowRule
		loc  uint32
		want status
	}{
		"op":             {op: 3, r: tcp4(80, 1), want: statusInvalidArgument},
		"place":          {r: tcp4(80, 1), loc: nic.MaxRules, want: statusInvalidArgument},
		"queue":          {r: tcp4(80, 2), want: statusInvalidArgument},
		"type":           {r: change(func(r *flowRule) { r.Kind = 10 }), want: statusInvalidArgument},
		"SPI 0":          {r: change(func(r *flowRule) { *r = spi(4, 0) }), want: statusInvalidArgument},
		"half an SPI":    {r: change(func(r *flowRule) { r.Kind = 4 }), want: statusUnimplemented},
		"all of ESP":     {r: change(func(r *flowRule) { *r = flowRule{Kind: 4} }), want: statusInvalidArgument},
		"all of AH":      {r: change(func(r *flowRule) { *r = flowRule{Kind: 8} }), want: statusInvalidArgument},
		"part of a port": {r: change(func(r *flowRule) { r.Mask.Ports[2] = 0xf0 }), want: statusUnimplemented},
		"prefix":         {r: change(func(r *flowRule) { r.Mask.Src[0] = 0xff }), want: statusUnimplemented},
		"service":        {r: change(func(r *flowRule) { r.Mask.TOS = 0xff }), want: statusUnimplemented},
		"port 0":         {r: change(func(r *flowRule) { r.Key.Ports = [4]byte{} }), want: statusInvalidArgument},
		"everything":     {r: change(func(r *flowRule) { r.Mask = flowSpec{} }), want: statusInvalidArgument},
		"no such rule":   {op: flowDel, loc: ^uint32(0), want: statusNotFound},
	} {
		testkit.Equal(t, name, c.flow(x.op, x.r, x.loc), x.want)
	}
	to := c.alloc(4096)
	for name, x := range map[string]struct {
		what uint16
		room uint64
		to   uint64
		want status
	}{
		"another query":             {3, 4096, to, statusInvalidArgument},
		"no room":                   {0, 15, to, statusResourceExhausted},
		"nowhere":                   {1, ^uint64(0), 0xdead000, statusInvalidArgument},
		"all the room in the world": {1, ^uint64(0), c.alloc(16), statusPassed},
	} {
		testkit.Equal(t, name, c.command(opQueryFlowRules, x.what, uint16(0), uint32(0), x.room, x.to), x.want)
	}
	c.noRules()
}
