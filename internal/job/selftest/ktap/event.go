package ktap

// Whole is the name of a case that stands for the whole program.
const Whole = "(program)"

// Case is one test.
type Case struct {
	Number int    // as printed or planned; 0: no number
	Name   string // without the program's name, or Whole; "#3": the case has only a number. Subtests: as printed
	Result Result
	// Directive is the keyword after the hash sign, as SKIP; may be "".
	Directive string
	// Reason is the text after the hash sign and the directive, or says why the parser decided the result.
	Reason string
	// Diagnostics are the kept lines since the previous case's end that are no results or other lines of KTAP, without
	// "# "; Dropped is how many lines were not kept.
	Diagnostics []string
	Dropped     int
	// Subtests are nested results (ktap.rst, "Nested tests").
	Subtests []Case
}

// Kind is the kind of an Event.
type Kind int

const (
	Planned   Kind = iota + 1 // the plan: N cases
	Begun                     // a case begins: Case.Number, and Case.Name if known
	Ended                     // a case ended, with Case.Result
	Continued                 // Line continues the Reason of the case that ended last
	Counted                   // Totals has the program's own counts
	BailedOut                 // the program gave up; Line is the reason
)

// Event is something that a program printed, or that follows from its output or its end. The receiver owns its memory.
// Fields that Kind does not name are zero.
type Event struct {
	Kind   Kind
	N      int
	Case   Case
	Line   string
	Totals Totals
}
