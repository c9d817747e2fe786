package splitter

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
	"slices"
)

// Fields is a set of fields of a Flow.
type Fields uint8

// Fields of a Flow. In addition to the fields of a rule, the IP version must match.
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

// Errors of NewRules and With.
var (
	ErrRuleExists = errors.New("rule exists")
	ErrBadRule    = errors.New("bad rule")
)

// Rule steers the flows that equal Flow in Fields and IP version to Queue. A rule has at least one field; a port or SPI
// in Fields is not 0. With FieldProto for ESP or AH it has both ports in Fields (the halves of the SPI), or neither;
// with FieldProto for other protocols than TCP, UDP and SCTP, neither.
type Rule struct {
	ID     uint32 // for errors and LookupID
	Flow   Flow
	Fields Fields
	Queue  uint16
}

// Rules is a table of exact-match flow rules. The zero Rules has no rules. Rules is immutable; NewRules and
// With make it. A rule with more fields has priority over one with fewer. If two rules have equally many, the first
// field that only one of them has gives this rule priority, in the order destination address, source address,
// protocol, destination port, source port.
type Rules struct {
	groups []group // highest priority first
}

// group has the rules with the same fields: a hash table with open addressing, at most half full.
type group struct {
	fields Fields
	mask   words
	n      int
	table  []entry // its length is a power of two
}

type entry struct {
	flow  words // masked
	queue uint16
	used  bool
	id    uint32
}

// words is a Flow as five 64-bit words. In most functions they are five variables, because the compiler keeps the
// struct in memory.
type words struct{ src0, src1, dst0, dst1, rest uint64 }

var le = binary.LittleEndian

func (f *Flow) rest() (w uint64) {
	w = uint64(f.SrcPort) | uint64(f.DstPort)<<16 | uint64(f.Proto)<<32
	if f.IPv6 {
		w |= 1 << 40
	}
	return w
}

// mask returns the bits of the fields, and of the IP version, in a flow's words.
func (f Fields) mask() (m words) {
	all := Flow{IPv6: true}
	if f&FieldSrc != 0 {
		m.src0, m.src1 = math.MaxUint64, math.MaxUint64
	}
	if f&FieldDst != 0 {
		m.dst0, m.dst1 = math.MaxUint64, math.MaxUint64
	}
	if f&FieldSrcPort != 0 {
		all.SrcPort = math.MaxUint16
	}
	if f&FieldDstPort != 0 {
		all.DstPort = math.MaxUint16
	}
	if f&FieldProto != 0 {
		all.Proto = math.MaxUint8
	}
	m.rest = all.rest()
	return m
}

// seeds are random, so that nobody can choose rules or flows that collide in a table.
var seeds = [6]uint64{rand.Uint64(), rand.Uint64(), rand.Uint64(), rand.Uint64(), rand.Uint64(), rand.Uint64()}

// hash folds 128-bit products, as wyhash does.
func hash(src0, src1, dst0, dst1, rest uint64) uint64 {
	h := product(src0^seeds[0], dst0^seeds[1]) ^ product(rest^seeds[2], seeds[3])
	if src1|dst1 != 0 { // IPv6
		h ^= product(src1^seeds[4], dst1^seeds[5])
	}
	return h
}

func product(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	return hi ^ lo
}

const minTable = 4

func newGroup(f Fields, n int) group {
	size := minTable
	for size < 2*n {
		size *= 2
	}
	return group{fields: f, mask: f.mask(), table: make([]entry, size)}
}

// find returns the entry of a flow, or the free entry where it belongs.
func (g *group) find(src0, src1, dst0, dst1, rest uint64) *entry {
	m := &g.mask
	src0, src1, dst0, dst1, rest = src0&m.src0, src1&m.src1, dst0&m.dst0, dst1&m.dst1, rest&m.rest
	for i := hash(src0, src1, dst0, dst1, rest); ; i++ {
		e := &g.table[i&uint64(len(g.table)-1)]
		w := &e.flow
		if (w.src0^src0)|(w.src1^src1)|(w.dst0^dst0)|(w.dst1^dst1)|(w.rest^rest) == 0 || !e.used {
			return e
		}
	}
}

func (g *group) with() group {
	if 2*(g.n+1) <= len(g.table) {
		n := *g
		n.table = slices.Clone(g.table)
		return n
	}
	n := newGroup(g.fields, g.n+1)
	n.n = g.n
	for i := range g.table {
		if e := &g.table[i]; e.used {
			w := &e.flow
			*n.find(w.src0, w.src1, w.dst0, w.dst1, w.rest) = *e
		}
	}
	return n
}

// NewRules returns the table for a list of rules, in time linear in the list. The error wraps ErrBadRule, or
// ErrRuleExists if two rules match exactly the same flows.
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
		if n > 0 {
			r.groups = append(r.groups, newGroup(Fields(fields), n))
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

// With returns the table with one more rule, or an error as NewRules. r does not change.
func (r *Rules) With(rule Rule) (*Rules, error) {
	if err := rule.check(); err != nil {
		return nil, err
	}
	n := &Rules{groups: slices.Clone(r.groups)}
	if g := n.group(rule.Fields); g != nil {
		*g = g.with()
	} else {
		n.groups = append(n.groups, newGroup(rule.Fields, 1))
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

// add adds a rule to its group, whose table must have space, and must not be shared with other Rules.
func (r *Rules) add(rule *Rule) error {
	g := r.group(rule.Fields)
	m := &g.mask
	f := &rule.Flow
	e := g.find(le.Uint64(f.Src[:]), le.Uint64(f.Src[8:]), le.Uint64(f.Dst[:]), le.Uint64(f.Dst[8:]), f.rest())
	if e.used {
		return fmt.Errorf("rule %d: %w: another one matches the same", rule.ID, ErrRuleExists)
	}
	*e = entry{queue: rule.Queue, used: true, id: rule.ID, flow: words{
		src0: le.Uint64(f.Src[:]) & m.src0, src1: le.Uint64(f.Src[8:]) & m.src1,
		dst0: le.Uint64(f.Dst[:]) & m.dst0, dst1: le.Uint64(f.Dst[8:]) & m.dst1, rest: f.rest() & m.rest}}
	g.n++
	return nil
}

func (f Fields) weight() int {
	w := bits.OnesCount8(uint8(f)) << 5
	for i, one := range []Fields{FieldSrcPort, FieldDstPort, FieldProto, FieldSrc, FieldDst} {
		if f&one != 0 {
			w += 1 << i
		}
	}
	return w
}

func (r *Rule) check() error {
	switch {
	case r.Fields == 0 || r.Fields&^FieldsAll != 0:
		return fmt.Errorf("%w %d: fields %#x", ErrBadRule, r.ID, uint8(r.Fields))
	case r.Fields&FieldProto != 0 && r.Flow.HasSPI():
		if r.Fields&fieldPorts != 0 && (r.Fields&fieldPorts != fieldPorts || r.Flow.SPI() == 0) {
			return fmt.Errorf("%w %d: half of an SPI, or SPI 0", ErrBadRule, r.ID)
		}
	case r.Fields&FieldSrcPort != 0 && r.Flow.SrcPort == 0, r.Fields&FieldDstPort != 0 && r.Flow.DstPort == 0:
		return fmt.Errorf("%w %d: port 0", ErrBadRule, r.ID)
	case r.Fields&fieldPorts != 0 && r.Fields&FieldProto != 0 && !hasPorts(r.Flow.Proto):
		return fmt.Errorf("%w %d: protocol %d has no ports", ErrBadRule, r.ID, r.Flow.Proto)
	}
	switch {
	case !r.Flow.IPv6 && ([12]byte(r.Flow.Src[4:]) != [12]byte{} || [12]byte(r.Flow.Dst[4:]) != [12]byte{}):
		return fmt.Errorf("%w %d: IPv4 address longer than 4 bytes", ErrBadRule, r.ID)
	}
	return nil
}

func hasPorts(proto uint8) bool { return proto == ProtoTCP || proto == ProtoUDP || proto == ProtoSCTP }

// LookupFrame returns the queue for an IP frame from the rule for the flow of its upper layer, or else, in IPv6, from
// the rule for the flow of its authentication header. ok is false without such a rule.
func (r *Rules) LookupFrame(h *Headers) (queue uint16, ok bool) {
	queue, ok = r.Lookup(&h.Flow)
	if ok || !h.AH || len(r.groups) == 0 {
		return queue, ok
	}
	f := h.Flow
	f.Proto, f.SrcPort, f.DstPort = ProtoAH, uint16(h.AHSPI>>16), uint16(h.AHSPI)
	return r.Lookup(&f)
}

// Lookup returns the queue of the matching rule with the highest priority for the flow of an IP frame; ok is false
// without such a rule.
func (r *Rules) Lookup(f *Flow) (queue uint16, ok bool) {
	e := r.lookup(f)
	if e == nil {
		return 0, false
	}
	return e.queue, true
}

// LookupID returns the ID of the rule from which Lookup has the queue; ok is false without such a rule.
func (r *Rules) LookupID(f *Flow) (id uint32, ok bool) {
	e := r.lookup(f)
	if e == nil {
		return 0, false
	}
	return e.id, true
}

func (r *Rules) lookup(f *Flow) *entry {
	if len(r.groups) == 0 {
		return nil
	}
	src0, src1, dst0, dst1 := le.Uint64(f.Src[:]), le.Uint64(f.Src[8:]), le.Uint64(f.Dst[:]), le.Uint64(f.Dst[8:])
	rest := f.rest()
	for i := range r.groups {
		if e := r.groups[i].find(src0, src1, dst0, dst1, rest); e.used {
			return e
		}
	}
	return nil
}
