package splitter

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math/bits"
	"slices"
)

// Fields is a set of fields of a Flow.
type Fields uint8

// Fields of a rule. The IP version always counts.
const (
	FieldSrc Fields = 1 << iota
	FieldDst
	FieldSrcPort
	FieldDstPort
	FieldProto
	// FieldsAll is the exact 5-tuple.
	FieldsAll = FieldSrc | FieldDst | FieldSrcPort | FieldDstPort | FieldProto
)

const fieldPorts = FieldSrcPort | FieldDstPort

// Errors of NewRules.
var (
	ErrRuleExists = errors.New("rule exists")
	ErrBadRule    = errors.New("bad rule")
)

// Rule sends the flows that equal Flow in Fields to Queue. Fields of Flow that are not in Fields
// are ignored. A rule has at least one field; a port in it is not 0, so fragments match only rules
// without ports.
type Rule struct {
	ID     uint32 // what errors name it by
	Flow   Flow
	Fields Fields
	Queue  uint16
}

// Rules is a table of exact-match flow rules. It is made by NewRules and then immutable: replace it
// through an atomic pointer. A rule with more fields beats one with fewer; of two with as many,
// addresses beat ports and the destination beats the source. The zero Rules has no rules.
type Rules struct {
	groups []group // best first
}

// group is the rules with the same fields.
type group struct {
	fields Fields
	queue  map[Flow]uint16 // by masked flow
}

// NewRules makes the table of a list of rules, in time that grows with the list. ErrRuleExists: two
// match the same.
func NewRules(list []Rule) (*Rules, error) {
	var count [FieldsAll + 1]int
	for i := range list {
		if err := list[i].check(); err != nil {
			return nil, err
		}
		count[list[i].Fields]++
	}
	r := &Rules{}
	for fields, n := range count {
		if n > 0 { // a map that grows would cost as much again
			r.groups = append(r.groups, group{Fields(fields), make(map[Flow]uint16, n)})
		}
	}
	r.sort()
	for i := range list {
		if err := r.add(&list[i]); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// With makes the table with one rule more, much faster than NewRules does. r stays what it is.
func (r *Rules) With(rule Rule) (*Rules, error) {
	if err := rule.check(); err != nil {
		return nil, err
	}
	n := &Rules{groups: slices.Clone(r.groups)}
	if g := n.group(rule.Fields); g != nil {
		g.queue = maps.Clone(g.queue)
	} else {
		n.groups = append(n.groups, group{rule.Fields, make(map[Flow]uint16)})
		n.sort()
	}
	if err := n.add(&rule); err != nil {
		return nil, err
	}
	return n, nil
}

func (r *Rules) group(f Fields) *group {
	for i := range r.groups {
		if r.groups[i].fields == f {
			return &r.groups[i]
		}
	}
	return nil
}

func (r *Rules) sort() {
	slices.SortFunc(r.groups, func(a, b group) int { return cmp.Compare(b.fields.weight(), a.fields.weight()) })
}

// add puts a rule that was checked into its group, whose map is not shared yet.
func (r *Rules) add(rule *Rule) error {
	queue := r.group(rule.Fields).queue
	n := len(queue)
	if queue[rule.Fields.mask(&rule.Flow)] = rule.Queue; len(queue) == n {
		return fmt.Errorf("rule %d: %w: another one matches the same", rule.ID, ErrRuleExists)
	}
	return nil
}

// mask clears the fields of a flow that a rule does not look at.
func (f Fields) mask(flow *Flow) Flow {
	m := Flow{IPv6: flow.IPv6}
	if f&FieldSrc != 0 {
		m.Src = flow.Src
	}
	if f&FieldDst != 0 {
		m.Dst = flow.Dst
	}
	if f&FieldSrcPort != 0 {
		m.SrcPort = flow.SrcPort
	}
	if f&FieldDstPort != 0 {
		m.DstPort = flow.DstPort
	}
	if f&FieldProto != 0 {
		m.Proto = flow.Proto
	}
	return m
}

// weight orders groups: the number of fields, then which.
func (f Fields) weight() int {
	w := bits.OnesCount8(uint8(f)) << 5
	for i, one := range []Fields{FieldSrcPort, FieldDstPort, FieldProto, FieldSrc, FieldDst} {
		if f&one != 0 {
			w += 1 << i
		}
	}
	return w
}

// check says what is wrong with a rule.
func (r *Rule) check() error {
	switch {
	case r.Fields == 0 || r.Fields&^FieldsAll != 0:
		return fmt.Errorf("%w %d: fields %#x", ErrBadRule, r.ID, uint8(r.Fields))
	case r.Fields&FieldSrcPort != 0 && r.Flow.SrcPort == 0, r.Fields&FieldDstPort != 0 && r.Flow.DstPort == 0:
		return fmt.Errorf("%w %d: port 0", ErrBadRule, r.ID)
	case r.Fields&fieldPorts != 0 && r.Fields&FieldProto != 0 && r.Flow.Proto != ProtoTCP && r.Flow.Proto != ProtoUDP:
		return fmt.Errorf("%w %d: protocol %d has no ports", ErrBadRule, r.ID, r.Flow.Proto)
	case !r.Flow.IPv6 && ([12]byte(r.Flow.Src[4:]) != [12]byte{} || [12]byte(r.Flow.Dst[4:]) != [12]byte{}):
		return fmt.Errorf("%w %d: IPv4 address longer than 4 bytes", ErrBadRule, r.ID)
	}
	return nil
}

// Lookup finds the queue for the flow of an IP frame.
func (r *Rules) Lookup(f *Flow) (queue uint16, ok bool) {
	for i := range r.groups {
		g := &r.groups[i]
		if g.fields == FieldsAll {
			queue, ok = g.queue[*f]
		} else {
			queue, ok = g.queue[g.fields.mask(f)]
		}
		if ok {
			return queue, true
		}
	}
	return 0, false
}
