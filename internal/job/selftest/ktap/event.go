package ktap

// Whole is the name of the case that stands for the whole program: if it prints no KTAP, if its plan skips it, if a
// result line has the program's own name (ynl.py), or for an error that belongs to none of its cases.
const Whole = "(program)"

// Case is one test.
type Case struct {
	Number int    // as printed or planned, normally from 1; 0 for the whole program if there is no result line
	Name   string // without the program's name; Whole: the whole program; "#3": the case has only a number
	Result Result
	// Directive is the keyword after the hash sign, for example SKIP; "": none.
	Directive string
	// Reason is the text after the directive, or after the hash sign without one. If the parser decided the result (a
	// failed subtest, SIGTERM, no result line), Reason says why.
	Reason string
	// Diagnostics are the lines, without "# ", that were printed since the previous case ended: ksft.py prints failed
	// checks and tracebacks there.
	Diagnostics []string
	Dropped     int // lines that were not kept
	// Subtests are nested results (ktap.rst, "Nested tests"), each with the printed name.
	Subtests []Case
}

// Kind is the kind of an Event.
type Kind int

// Kinds of events.
const (
	Planned   Kind = iota + 1 // the program will run N cases
	Begun                     // the case Case.Number begins; Case.Name is its name, if known
	Ended                     // Case has a result
	Continued                 // Line continues the Reason of the case that ended last
	Counted                   // Totals is the program's own count
	BailedOut                 // Line says why the program gave up
)

// Event is something that a program printed, or that follows from its end. The receiver owns the memory to which it
// points.
type Event struct {
	Kind   Kind
	N      int
	Case   Case
	Line   string
	Totals Totals
}
