package ktap

// Whole is the name of the case that a whole program is: of one that prints no KTAP, of one that says of itself that it
// is skipped, and of what is wrong with a program and none of its cases.
const Whole = "(program)"

// Case is one test.
type Case struct {
	Number int    // from 1; 0: a whole program's
	Name   string // without the program's name; Whole: the program is the case; "#3": it has a number only
	Result Result
	// Directive is the keyword behind the hash sign, as SKIP; "" where there is none.
	Directive string
	// Reason is the text behind the directive; of a case without a result line, why there is none.
	Reason string
	// Diagnostics are the lines that were printed since the case before ended, without "# ": with ksft.py these are
	// checks that failed, and tracebacks.
	Diagnostics []string
	Dropped     int // lines that were not kept
	// Subtests are nested results (ktap.rst, "Nested tests"): Name is what is printed, of the innermost level.
	Subtests []Case
}

// Kind is what an Event tells of.
type Kind int

// Kinds of events.
const (
	Planned   Kind = iota + 1 // N cases will be run
	Begun                     // Case.Number and, if it is known, Case.Name begins
	Ended                     // Case has a result
	Continued                 // Line belongs to the Reason of the case that ended last: it has more lines than one
	Counted                   // Totals is the program's own count
	BailedOut                 // Line says why the program gave up
)

// Event is something that a program printed, or that follows from its end. What it points to is the receiver's.
type Event struct {
	Kind   Kind
	N      int
	Case   Case
	Line   string
	Totals Totals
}
