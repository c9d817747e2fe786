package splitter

import "errors"

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

// Errors of Rules.
var (
	ErrRuleExists = errors.New("rule exists")
	ErrNoRule     = errors.New("no such rule")
	ErrBadRule    = errors.New("bad rule")
	ErrRulesFull  = errors.New("too many rules")
)

// Rule sends the flows that equal Flow in Fields to Queue. Fields of Flow that are not in Fields are ignored.
type Rule struct {
	ID     uint32
	Flow   Flow
	Fields Fields
	Queue  uint16
}

// Rules is a table of exact-match flow rules. Lookups take no lock and may run while rules change; they see either the
// old table or the new one. A rule with more fields beats one with fewer.
type Rules struct{}

// NewRules makes an empty table of at most max rules (0: 1024).
func NewRules(max int) *Rules { return &Rules{} }

// Add installs a rule. ErrRuleExists: the ID, or the same match, is there already.
func (r *Rules) Add(rule Rule) error { return nil }

// Del removes the rule with this ID; ErrNoRule if there is none.
func (r *Rules) Del(id uint32) error { return nil }

// Lookup finds the queue for a flow of an IP frame.
func (r *Rules) Lookup(f *Flow) (queue uint16, ok bool) { return 0, false }

// List gives the rules in the order in which they were added.
func (r *Rules) List() []Rule { return nil }

// Len says how many rules there are.
func (r *Rules) Len() int { return 0 }
