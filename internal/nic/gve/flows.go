package gve

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/nic"
	"vnic.dev/vnic/splitter"
)

// Flow rules: CONFIGURE_FLOW_RULE and QUERY_FLOW_RULES. The driver names a rule by its location, the port by its id.
// A flowTable has the location of each rule of the port: the one that the driver has chosen, or, for a rule of the
// control channel, the lowest that was free (ethtool chooses the highest).

const (
	flowSpecLen    = 40                  // struct gve_flow_spec
	flowRuleLen    = 4 + 2*flowSpecLen   // struct gve_adminq_flow_rule
	flowCommandLen = 4 + flowRuleLen + 4 // struct gve_adminq_configure_flow_rule

	queriedRuleLen = 4 + flowRuleLen // struct gve_adminq_queried_flow_rule
	queryHeadLen   = 16              // struct gve_query_flow_rules_descriptor
)

const (
	flowAdd   = 0 // GVE_FLOW_RULE_CFG_ADD
	flowDel   = 1 // GVE_FLOW_RULE_CFG_DEL
	flowReset = 2 // GVE_FLOW_RULE_CFG_RESET

	queryRules = 0 // GVE_FLOW_RULE_QUERY_RULES
	queryIDs   = 1 // GVE_FLOW_RULE_QUERY_IDS
	queryStats = 2 // GVE_FLOW_RULE_QUERY_STATS
)

// flowKinds has the protocol and the IP version of each flow type, by number (enum gve_adminq_flow_type).
var flowKinds = [...]control.FlowRule{
	{Proto: splitter.ProtoTCP}, {Proto: splitter.ProtoUDP}, {Proto: splitter.ProtoSCTP}, {Proto: splitter.ProtoAH},
	{Proto: splitter.ProtoESP},
	{Proto: splitter.ProtoTCP, IPv6: true}, {Proto: splitter.ProtoUDP, IPv6: true},
	{Proto: splitter.ProtoSCTP, IPv6: true}, {Proto: splitter.ProtoAH, IPv6: true},
	{Proto: splitter.ProtoESP, IPv6: true},
}

const maxFlowLoc = nic.MaxRules

type flowSpec struct {
	Src, Dst [16]byte // offset 0, 16: IPv4 in the first four bytes
	Ports    [4]byte  // 32: source and destination; for AH and ESP the SPI
	TOS      uint8    // 36
	_        [3]byte
}

type flowRule struct {
	Kind      uint16   // offset 0
	Queue     uint16   // 2
	Key, Mask flowSpec // 4, 44
}

type flowCommand struct {
	Op   uint16 // offset 0
	_    [2]byte
	Rule flowRule // 4
	Loc  uint32   // 88
}

// exact returns true for a mask of ones (compare the field), false for one of zeros, and an error for others.
func exact(mask []byte) (bool, error) {
	switch {
	case bytes.Count(mask, []byte{0}) == len(mask):
		return false, nil
	case bytes.Count(mask, []byte{0xff}) == len(mask):
		return true, nil
	}
	return false, fmt.Errorf("mask %x: a field is compared whole or not at all: %w", mask, statusUnimplemented)
}

// rule converts the driver's rule to the port's form.
func (r *flowRule) rule() (c control.FlowRule, err error) {
	if int(r.Kind) >= len(flowKinds) {
		return c, invalid("flow type %d", r.Kind)
	}
	c = flowKinds[r.Kind]
	c.Queue = r.Queue
	if r.Mask.TOS != 0 {
		return c, fmt.Errorf("rule for a type of service: %w", statusUnimplemented)
	}
	if c.HasSPI() && c.IPv6 && r.Mask.Ports == [4]byte{} && r.Key.Ports != [4]byte{} {
		// Linux 7.2 forgets the mask of an SPI over IPv6, and sends the SPI
		// (gve_generate_flow_rule).
		r.Mask.Ports = [4]byte{0xff, 0xff, 0xff, 0xff}
	}
	for _, f := range r.fields(&c) {
		on, e := exact(f.mask)
		if on && e == nil {
			e = f.get()
		}
		err = errors.Join(err, e)
	}
	return c, err
}

// flowField is a field of a rule in the driver's form (key, mask) and in the port's: one of addr, port and spi.
type flowField struct {
	key, mask []byte
	addr      *netip.Addr
	port      *uint16
	spi       *control.FlowRule // its ports hold the SPI
}

// get converts the field to the port's form. It returns an error for port 0 and SPI 0.
func (f *flowField) get() error {
	switch {
	case f.addr != nil:
		*f.addr, _ = netip.AddrFromSlice(f.key)
	case f.spi != nil:
		if f.spi.SetSPI(be.Uint32(f.key)); f.spi.SPI() == 0 {
			return invalid("rule for SPI 0")
		}
	default:
		if *f.port = be.Uint16(f.key); *f.port == 0 {
			return invalid("rule for port 0")
		}
	}
	return nil
}

// put converts the field to the driver's form, if the rule compares it.
func (f *flowField) put() {
	switch {
	case f.addr != nil && f.addr.IsValid():
		copy(f.key, f.addr.AsSlice())
	case f.spi != nil && f.spi.SPI() != 0:
		be.PutUint32(f.key, f.spi.SPI())
	case f.port != nil && *f.port != 0:
		be.PutUint16(f.key, *f.port)
	default:
		return
	}
	copy(f.mask, bytes.Repeat([]byte{0xff}, len(f.mask)))
}

func (r *flowRule) fields(c *control.FlowRule) []flowField {
	n := 4
	if c.IPv6 {
		n = 16
	}
	fields := []flowField{
		{key: r.Key.Src[:n], mask: r.Mask.Src[:n], addr: &c.Src}, {key: r.Key.Dst[:n], mask: r.Mask.Dst[:n], addr: &c.Dst},
	}
	key, mask := &r.Key.Ports, &r.Mask.Ports
	if c.HasSPI() {
		return append(fields, flowField{key: key[:], mask: mask[:], spi: c})
	}
	return append(fields, flowField{key: key[:2], mask: mask[:2], port: &c.SrcPort},
		flowField{key: key[2:], mask: mask[2:], port: &c.DstPort})
}

func (r *flowRule) set(c *control.FlowRule) {
	*r = flowRule{Queue: c.Queue}
	r.Kind = uint16(slices.IndexFunc(flowKinds[:], func(k control.FlowRule) bool {
		return k.Proto == c.Proto && k.IPv6 == c.IPv6
	}))
	for _, f := range r.fields(c) {
		f.put()
	}
}

// flowTable has the locations of the port's rules. The control goroutine owns it.
type flowTable struct {
	locations map[uint32]uint32 // by the port's rule id
}

type located struct {
	loc  uint32
	rule control.FlowRule
}

func (t *flowTable) clear() { t.locations = nil }

// list returns the rules in the order of their locations. It forgets the locations of deleted rules, and gives a rule
// without a location the lowest that is free.
func (t *flowTable) list(rules []control.FlowRule) []located {
	locations := make(map[uint32]uint32, len(rules))
	used := make(map[uint32]bool, len(rules))
	for _, r := range rules {
		if loc, ok := t.locations[r.ID]; ok {
			locations[r.ID], used[loc] = loc, true
		}
	}
	out := make([]located, 0, len(rules))
	next := uint32(0)
	for _, r := range rules {
		loc, ok := locations[r.ID]
		if !ok {
			for used[next] {
				next++
			}
			loc = next
			locations[r.ID], used[loc] = loc, true
		}
		out = append(out, located{loc, r})
	}
	t.locations = locations
	slices.SortFunc(out, func(a, b located) int { return cmp.Compare(a.loc, b.loc) })
	return out
}

func (d *Device) flowRules() ([]located, error) {
	rules, err := d.port.Flows()
	return d.flows.list(rules), err
}

// configureFlowRule carries out CONFIGURE_FLOW_RULE. An added rule replaces another one at the same
// location, as ethtool expects.
func (d *Device) configureFlowRule(b *[flowCommandLen]byte) error {
	cmd := decode[flowCommand](b[:])
	loc := cmd.Loc
	rules, err := d.flowRules()
	if err != nil {
		return err
	}
	i, found := slices.BinarySearchFunc(rules, loc, func(l located, loc uint32) int { return cmp.Compare(l.loc, loc) })
	switch cmd.Op {
	case flowAdd:
		if loc >= maxFlowLoc {
			return invalid("location %d of %d", loc, maxFlowLoc)
		}
		c, err := cmd.Rule.rule()
		if err != nil {
			return err
		}
		var id uint32
		if found {
			id, err = d.port.ReplaceFlow(rules[i].rule.ID, c)
		} else {
			id, err = d.port.AddFlow(c)
		}
		if err == nil {
			d.flows.locations[id] = loc
		}
		return err
	case flowDel:
		if !found {
			return fmt.Errorf("no rule at %d: %w", loc, statusNotFound)
		}
		return d.port.DelFlow(rules[i].rule.ID)
	case flowReset:
		for _, l := range rules {
			err = errors.Join(err, d.port.DelFlow(l.rule.ID))
		}
		return err
	default:
		return invalid("unknown flow rule operation %d", cmd.Op)
	}
}

// queryFlowRules carries out QUERY_FLOW_RULES. The body has query (u16), zero (u16), first location (u32), room (u64)
// and address (u64). The reply is {rules, maximum, returned, length}, u32 each, and then the rules with their
// locations (queryRules) or only the locations (queryIDs), from the first location on, as many as fit; for queryStats
// none.
func (d *Device) queryFlowRules(b *body) error {
	what, first, room, addr := be.Uint16(b[0:]), be.Uint32(b[4:]), be.Uint64(b[8:]), be.Uint64(b[16:])
	if room < queryHeadLen {
		return fmt.Errorf("%d bytes for %d: %w", room, queryHeadLen, statusResourceExhausted)
	}
	rules, err := d.flowRules()
	if err != nil {
		return err
	}
	out := make([]byte, queryHeadLen, queryHeadLen+len(rules)*queriedRuleLen)
	be.PutUint32(out[0:], uint32(len(rules)))
	be.PutUint32(out[4:], nic.MaxRules)
	var n uint32
	for _, l := range rules {
		if l.loc < first {
			continue
		}
		size := 4
		if what == queryRules {
			size = queriedRuleLen
		}
		if what == queryStats || uint64(len(out)+size) > room {
			break
		}
		out = be.AppendUint32(out, l.loc)
		if what == queryRules {
			var r flowRule
			r.set(&l.rule)
			out, _ = binary.Append(out, be, &r)
		}
		n++
	}
	switch {
	case what > queryStats:
		return invalid("query %d about flow rules", what)
	case what == queryRules && n == 0:
		// Linux reads the last returned rule without checking that there is one
		// (gve_get_flow_rule_entry).
		return fmt.Errorf("no rule from %d on: %w", first, statusNotFound)
	}
	be.PutUint32(out[8:], n)
	be.PutUint32(out[12:], uint32(len(out)))
	return d.mem.write(addr, out)
}
