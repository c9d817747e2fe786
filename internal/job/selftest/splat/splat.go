package splat

import (
	"vnic.dev/vnic/internal/job/selftest/ktap"
)

// Bounds of what is kept.
const (
	MaxLine   = 1 << 10 // bytes of a line, without its time; printk's own bound (PRINTK_MESSAGE_MAX is 2 KiB)
	MaxLines  = 200     // of a block
	MaxSplats = 64      // complaints that are reported
)

// Kind is the class of a complaint.
type Kind string

// Kinds.
const (
	Oops      Kind = "oops"       // an access to no memory, or another exception in kernel mode
	Bug       Kind = "bug"        // BUG(), and what the kernel calls so: a bad page, sleeping where it must not
	Warning   Kind = "warning"    // WARN()
	KASAN     Kind = "kasan"      // of the sanitizers: KASAN, KFENCE, KMSAN and KCSAN
	UBSAN     Kind = "ubsan"      // undefined behaviour
	Lockdep   Kind = "lockdep"    // of the checkers of locks and RCU
	Lockup    Kind = "lockup"     // a CPU, or a workqueue, that makes no progress
	Stall     Kind = "rcu-stall"  // RCU waits
	HungTask  Kind = "hung-task"  // a task waits
	TxTimeout Kind = "tx-timeout" // the stack's watchdog: a transmit queue makes no progress
	RefLeak   Kind = "ref-leak"   // unregister_netdevice waits for a reference
	Leak      Kind = "leak"       // kmemleak
	Panic     Kind = "panic"      // the machine stops
)

// Splat is one complaint.
type Splat struct {
	Kind  Kind   `json:"kind"`
	Title string `json:"title"` // the line that says what it is
	// Function in which it happened: of RIP, of the title, or the first of the trace that is not the reporter's own;
	// "": the block names none.
	Function string   `json:"function,omitempty"`
	Module   string   `json:"module,omitempty"` // of Function; "": it is built in, or not known
	Time     string   `json:"time,omitempty"`   // printk's, of the first line: seconds since the machine booted
	Lines    []string `json:"lines"`            // the whole block, without times
	Dropped  int      `json:"dropped,omitempty"`
}

// Fatal reports whether another test in this kernel would prove nothing after the complaint.
func (s *Splat) Fatal() bool {
	switch s.Kind {
	case Oops, Bug, Lockup, Panic, HungTask, KASAN:
		return true
	}
	return false
}

// Scanner looks for complaints in a console's output. It is used by one goroutine.
type Scanner struct {
	report   func(Splat)
	cutter   ktap.Cutter
	reported int
	// More counts complaints behind the first MaxSplats, which are not reported.
	More int
	open *block
	// titles of complaints that the kernel repeats while their cause lasts: each is reported once
	once map[string]bool
}

// New makes a Scanner that calls report for each complaint, from Write and Flush. The Splat is the receiver's.
func New(report func(Splat)) *Scanner {
	s := &Scanner{report: report, once: make(map[string]bool)}
	s.cutter = ktap.Cutter{Max: 2 * MaxLine, Line: s.line} // a time and what precedes it have room, too
	return s
}

// Write takes output as it comes, in pieces of any size. It returns no error, and keeps nothing of b.
func (s *Scanner) Write(b []byte) (int, error) { return s.cutter.Write(b) }

// Flush ends an open block: at the end of a test, or of the machine.
func (s *Scanner) Flush() {
	s.cutter.Flush()
	s.close()
}

// Open reports whether a complaint has begun whose end has not come.
func (s *Scanner) Open() bool { return s.open != nil }

func (s *Scanner) line(line []byte, _ bool) {
	if time, text, ok := message(ktap.Clean(line)); ok {
		if len(text) > MaxLine {
			text = ktap.Clean([]byte(text[:MaxLine])) + " [...]"
		}
		s.take(time, text)
	}
}

// take looks at a kernel message.
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
