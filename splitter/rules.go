package splitter

import (
	"cmp"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
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

// Errors of Rules.
var (
	ErrRuleExists = errors.New("rule exists")
	ErrNoRule     = errors.New("no such rule")
	ErrBadRule    = errors.New("bad rule")
	ErrRulesFull  = errors.New("too many rules")
)

// defaultRules is how many rules a table takes unless told.
const defaultRules = 1024

// Rule sends the flows that equal Flow in Fields to Queue. Fields of Flow that are not in Fields are ignored. A rule has
// at least one field; a port in it is not 0, so fragments match only rules without ports.
type Rule struct {
	ID     uint32
	Flow   Flow
	Fields Fields
	Queue  uint16
}

// Rules is a table of exact-match flow rules. Lookups take no lock and may run while rules change; they see either the
// old table or the new one. A rule with more fields beats one with fewer; of two with as many, addresses beat ports and
// the destination beats the source.
type Rules struct {
	table atomic.Pointer[[]group] // immutable; best first. nil: no rules
	max   int

	mu    sync.Mutex // of changes
	rules []Rule     // in order of arrival
}

// group is the rules with the same fields.
type group struct {
	fields Fields
	queue  map[Flow]uint16 // by masked flow
}

// NewRules makes an empty table of at most max rules (0: 1024).
func NewRules(max int) *Rules {
	if max <= 0 {
		max = defaultRules
	}
	return &Rules{max: max}
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
	case !r.Flow.IPv6 && (!zero(r.Flow.Src[4:]) || !zero(r.Flow.Dst[4:])):
		return fmt.Errorf("%w %d: IPv4 address longer than 4 bytes", ErrBadRule, r.ID)
	}
	return nil
}

func zero(b []byte) bool { return !slices.ContainsFunc(b, func(c byte) bool { return c != 0 }) }

// Add installs a rule. ErrRuleExists: the ID, or the same match, is there already.
func (r *Rules) Add(rule Rule) error {
	if err := rule.check(); err != nil {
		return err
	}
	rule.Flow = rule.Fields.mask(&rule.Flow)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, o := range r.rules {
		if o.ID == rule.ID || o.Fields == rule.Fields && o.Flow == rule.Flow {
			return fmt.Errorf("rule %d: %w: as %d", rule.ID, ErrRuleExists, o.ID)
		}
	}
	if len(r.rules) >= r.max {
		return fmt.Errorf("rule %d: %w: %d", rule.ID, ErrRulesFull, r.max)
	}
	r.rules = append(r.rules, rule)
	r.publish()
	return nil
}

// Del removes the rule with this ID; ErrNoRule if there is none.
func (r *Rules) Del(id uint32) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := slices.IndexFunc(r.rules, func(o Rule) bool { return o.ID == id })
	if i < 0 {
		return fmt.Errorf("rule %d: %w", id, ErrNoRule)
	}
	r.rules = slices.Delete(r.rules, i, i+1)
	r.publish()
	return nil
}

// publish makes the table that lookups see, from rules, under mu.
func (r *Rules) publish() {
	if len(r.rules) == 0 {
		r.table.Store(nil)
		return
	}
	var t []group
	for _, rule := range r.rules {
		i := slices.IndexFunc(t, func(g group) bool { return g.fields == rule.Fields })
		if i < 0 {
			i = len(t)
			t = append(t, group{rule.Fields, make(map[Flow]uint16)})
		}
		t[i].queue[rule.Flow] = rule.Queue
	}
	slices.SortFunc(t, func(a, b group) int { return cmp.Compare(b.fields.weight(), a.fields.weight()) })
	r.table.Store(&t)
}

// Lookup finds the queue for the flow of an IP frame.
func (r *Rules) Lookup(f *Flow) (queue uint16, ok bool) {
	t := r.table.Load()
	if t == nil {
		return 0, false
	}
	for i := range *t {
		g := &(*t)[i]
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

// List gives the rules in the order in which they were added.
func (r *Rules) List() []Rule {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.rules)
}

// Len says how many rules there are.
func (r *Rules) Len() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.rules)
}
