package splat

import (
	"vnic.dev/vnic/internal/job/selftest/ktap"
)

// Bounds of a Scanner.
const (
	MaxLine   = 1 << 10 // kept bytes of a line, without its time
	MaxLines  = 200     // kept lines of a complaint
	MaxSplats = 64      // reported complaints
)

// Kind is the class of a complaint.
type Kind string

// Kinds.
const (
	Oops      Kind = "oops"       // an exception in kernel mode, as an invalid memory access
	Bug       Kind = "bug"        // BUG(), and reports that begin with BUG and are of no other kind
	Warning   Kind = "warning"    // WARN(), and reports that begin with "cut here" and are of no other kind
	KASAN     Kind = "kasan"      // KASAN, KFENCE, KMSAN, KCSAN
	UBSAN     Kind = "ubsan"      // undefined behaviour
	Lockdep   Kind = "lockdep"    // checkers of locks and of RCU
	Lockup    Kind = "lockup"     // a CPU, or a workqueue, that makes no progress
	Stall     Kind = "rcu-stall"  // RCU waits too long
	HungTask  Kind = "hung-task"  // a task is blocked too long
	TxTimeout Kind = "tx-timeout" // a transmit queue makes no progress
	RefLeak   Kind = "ref-leak"   // unregister_netdevice waits for the release of references
	Leak      Kind = "leak"       // kmemleak found leaked memory
	Panic     Kind = "panic"      // the kernel panics
)

// Splat is one complaint.
type Splat struct {
	Kind  Kind   `json:"kind"`
	Title string `json:"title"` // the line that describes the complaint, and the text of a WARN
	// Function in which the complaint arose: from the line RIP or pc, from the title, or from the trace, without functions
	// that report, wait, lock or copy; "": the block names no other.
	Function string   `json:"function,omitempty"`
	Module   string   `json:"module,omitempty"` // kernel module of Function; "": built in, or unknown
	Time     string   `json:"time,omitempty"`   // printk's time of the first line: seconds since the machine booted
	Lines    []string `json:"lines"`            // of the block, without times, at most its first 200
	Dropped  int      `json:"dropped,omitempty"`
}

// Fatal reports whether later results in this kernel would be worthless.
func (s *Splat) Fatal() bool {
	switch s.Kind {
	case Oops, Bug, Lockup, Panic, HungTask, KASAN:
		return true
	}
	return false
}

// Scanner looks for complaints in a console's output. Its methods must not run at the same time.
type Scanner struct {
	report   func(Splat)
	cutter   ktap.Cutter
	reported int
	// More counts complaints after the first MaxSplats, which are not reported.
	More int
	open *block
	// titles that have come, of the kinds RefLeak and Stall, which the kernel repeats; at most MaxSplats
	once map[string]bool
}

// New makes a Scanner, which calls report with each of the first MaxSplats complaints. The called function owns the
// Splat.
func New(report func(Splat)) *Scanner {
	s := &Scanner{report: report, once: make(map[string]bool)}
	s.cutter = ktap.Cutter{Max: 2 * MaxLine, Line: s.line} // room for the time, and for text before it
	return s
}

// Write takes a piece of output of any size. It returns no error, and does not keep b.
func (s *Scanner) Write(b []byte) (int, error) { return s.cutter.Write(b) }

// Flush takes a last line that has no newline, and ends a complaint that has not ended.
func (s *Scanner) Flush() {
	s.cutter.Flush()
	s.close()
}

// Open reports whether a complaint has begun and not ended.
func (s *Scanner) Open() bool { return s.open != nil }

func (s *Scanner) line(line []byte, _ bool) {
	if time, text, ok := message(ktap.Clean(line)); ok {
		if len(text) > MaxLine {
			text = ktap.Clean([]byte(text[:MaxLine])) + " [...]"
		}
		s.take(time, text)
	}
}

func (s *Scanner) take(time, text string) {
	kind, ends, begins := begin(text)
	if s.open != nil && !s.open.holds(text, kind, begins) {
		s.close()
	}
	if s.open == nil {
		if !begins {
			return
		}
		s.open = &block{splat: Splat{Kind: kind, Time: time}, ends: ends, cut: text == cutHere}
	}
	s.open.add(text, kind, ends, begins)
	if s.open.ended(text) {
		s.close()
	}
}

func (s *Scanner) close() {
	if s.open == nil {
		return
	}
	splat := s.open.complete()
	s.open = nil
	if splat.Kind == RefLeak || splat.Kind == Stall {
		if s.once[splat.Title] {
			return
		}
		if len(s.once) < MaxSplats {
			s.once[splat.Title] = true
		}
	}
	if s.reported++; s.reported > MaxSplats {
		s.More++
		return
	}
	s.report(splat)
}
