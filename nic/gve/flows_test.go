package gve

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"vnic.dev/vnic/control"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/nic"
)

// flow has something done with a rule.
func (c *ctl) flow(op uint16, r flowRule, loc uint32) status {
	c.Helper()
	b, err := binary.Append(nil, be, flowCommand{Op: op, Rule: r, Loc: loc})
	c.OK(err)
	return c.command(opExtended, uint32(opConfigureFlowRule), uint32(len(b)), c.Put(b))
}

// query asks for rules or their places.
func (c *ctl) query(what uint16, first uint32, room uint64) (st status, count uint32, reply []byte) {
	c.Helper()
	to := c.alloc(int(room))
	st = c.command(opQueryFlowRules, what, uint16(0), first, room, to)
	h := c.at(to, queryHeadLen)
	n, length := be.Uint32(h[8:]), be.Uint32(h[12:])
	size := map[uint16]uint32{queryRules: queriedRuleLen, queryIDs: 4}[what]
	if st == statusPassed && (length != queryHeadLen+n*size || uint64(length) > room || be.Uint32(h[4:]) != nic.MaxRules) {
		c.Errorf("query %d: reply %x for room of %d", what, h, room)
	}
	return st, be.Uint32(h[0:]), c.at(to, int(length))[min(queryHeadLen, length):]
}

// places asks for the places of all rules, as the driver does (gve_get_flow_rule_ids).
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

// placesAre asks for the places, and says which they are.
func (c *ctl) placesAre(room uint64, want ...uint32) {
	c.Helper()
	if locs := c.places(room); !slices.Equal(locs, want) {
		c.Errorf("rules at %d, not %d", locs, want)
	}
}

// noRules says that the port has none.
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
	c.placesAre(4096, 508, 509, 510, 511)
	c.placesAre(queryHeadLen+4, 508, 509, 510, 511)
	_, n, reply := c.query(queryRules, 509, 4096)
	if n != 4 || len(reply) != 3*queriedRuleLen {
		t.Fatalf("%d rules, %d bytes", n, len(reply))
	}
	for i := range 3 {
		raw := reply[i*queriedRuleLen:]
		fr := decode[flowRule](raw[4:])
		r, err := fr.rule()
		if loc := be.Uint32(raw); err != nil || loc != uint32(509+i) || r != rules[2-i] {
			t.Errorf("rule at %d: %+v, %v", loc, r, err)
		}
	}
	if st, n, reply := c.query(queryStats, 0, queryHeadLen); st != statusPassed || n != 4 || len(reply) != 0 {
		t.Errorf("statistics: %v, %d rules, %d bytes", st, n, len(reply))
	}
	// A rule that comes over the control channel is seen and can be deleted; one that goes that way is gone.
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
	// One at a place that is taken takes it; one that cannot be leaves it.
	testkit.Equal(t, "status", c.flow(flowAdd, tcp4(80, 2), 511), statusPassed)
	testkit.Equal(t, "the same flow at two places", c.flow(flowAdd, tcp4(80, 3), 510), statusAlreadyExists)
	c.placesAre(4096, 1, 508, 509, 510, 511)
	testkit.Equal(t, "status", c.flow(flowReset, flowRule{}, 0), statusPassed)
	c.noRules()
	// Linux would look at the last of no rules.
	if st, _, _ := c.query(queryRules, 0, 4096); st != statusNotFound {
		t.Errorf("rules when there are none: %v", st)
	}
	c.placesAre(4096)
}

// A full table is listed in pages.
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
		"SCTP":           {r: change(func(r *flowRule) { r.Kind = 2 }), want: statusUnimplemented},
		"ESP":            {r: change(func(r *flowRule) { r.Kind = 9 }), want: statusUnimplemented},
		"part of a port": {r: change(func(r *flowRule) { r.Mask.DstPort[0] = 0xf0 }), want: statusUnimplemented},
		"prefix":         {r: change(func(r *flowRule) { r.Mask.Src[0] = 0xff }), want: statusUnimplemented},
		"service":        {r: change(func(r *flowRule) { r.Mask.TOS = 0xff }), want: statusUnimplemented},
		"port 0":         {r: change(func(r *flowRule) { r.Key.DstPort = [2]byte{} }), want: statusInvalidArgument},
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
