package splat

import (
	"regexp"
	"strings"
)

// stamped matches a kernel message, which ends its line: printk's time, the caller with CONFIG_PRINTK_CALLER, and text.
// Something else may precede the message in the line.
var stamped = regexp.MustCompile(`\[ *(\d{1,9}\.\d{6})\](?:\[ *[TC]\d+\])? ?(.*)$`)

func message(line string) (time, text string, ok bool) {
	m := stamped.FindStringSubmatch(line)
	if m == nil {
		return "", "", false
	}
	return m[1], m[2], true
}

// end is how a block, the lines of a complaint, ends, unless another complaint or Flush ends it.
type end int

const (
	oneLine  end = iota // the first line is the block
	marker              // "---[ end trace" (kernel/panic.c, print_oops_end_marker)
	equals              // a line of equals signs (mm/kasan/report.c, end_report)
	panicEnd            // "---[ end Kernel panic"
	trace               // before the first line that is not part of a trace
)

const (
	cutHere    = "------------[ cut here ]------------" // include/asm-generic/bug.h, CUT_HERE
	endTrace   = "---[ end trace"
	endPanic   = "---[ end Kernel panic"
	equalsLine = "=================================================================="
)

// dieHeader matches the line with the number of an oops (arch/x86/kernel/dumpstack.c, __die_header;
// arch/arm64/kernel/traps.c, __die).
var dieHeader = regexp.MustCompile(`^(Oops|Internal error)(:| - )`)

// beginnings match first lines of complaints. The first entry that matches a line counts.
var beginnings = []struct {
	line *regexp.Regexp
	kind Kind
	end  end
}{
	{regexp.MustCompile(`^` + regexp.QuoteMeta(cutHere)), Warning, marker}, // Warning, or the kind of a later line
	{regexp.MustCompile(`^BUG: (KASAN|KFENCE|KMSAN|KCSAN): `), KASAN, equals},
	{regexp.MustCompile(`^UBSAN: `), UBSAN, marker},
	{regexp.MustCompile(`BUG: soft lockup - |Watchdog detected hard LOCKUP|^BUG: workqueue lockup - `), Lockup, trace},
	{regexp.MustCompile(`INFO: rcu_\w+ (self-)?detected (expedited )?stall|INFO: rcu_\w+ detected stalls`), Stall, trace},
	{regexp.MustCompile(`^INFO: task .{1,64}:\d+ (<\w+> )?blocked .*for more than \d+ seconds`), HungTask, trace},
	{regexp.MustCompile(`^WARNING: (possible|suspicious|inconsistent|bad unlock|Nested lock|lock held|lockdep|` +
		`.*order detected)`), Lockdep, trace},
	{regexp.MustCompile(`^(BUG: Invalid wait context|\[ BUG: Invalid wait context \])`), Lockdep, trace},
	// arch/x86/mm/fault.c, show_fault_oops; arch/arm64/mm/fault.c, die_kernel_fault
	{regexp.MustCompile(`^BUG: (kernel NULL pointer dereference|unable to handle )|^Unable to handle kernel `), Oops,
		marker},
	{dieHeader, Oops, marker},
	{regexp.MustCompile(`^kernel BUG at `), Bug, marker},
	{regexp.MustCompile(`^BUG: `), Bug, trace},
	// kernel/panic.c, __warn: "WARNING: FILE:LINE at FUNCTION"; older kernels: "WARNING: CPU: 0 PID: 1 at FILE:LINE"
	{regexp.MustCompile(`^WARNING: .{0,256}\bat .*\+0x`), Warning, marker},
	{regexp.MustCompile(`NETDEV WATCHDOG: `), TxTimeout, oneLine}, // net/sched/sch_generic.c, dev_watchdog
	{regexp.MustCompile(`^unregister_netdevice: waiting for `), RefLeak, oneLine},
	{regexp.MustCompile(`^kmemleak: \d+ new suspected memory leaks`), Leak, oneLine},
	{regexp.MustCompile(`^Kernel panic - not syncing: `), Panic, panicEnd},
}

// begin returns the kind of the complaint that a line begins, and how the complaint's block ends; false: the line
// begins none.
func begin(text string) (Kind, end, bool) {
	if !strings.Contains(text, ": ") && !strings.HasPrefix(text, "---") && !strings.HasPrefix(text, "kernel BUG") &&
		!strings.HasPrefix(text, "Unable") && !strings.HasPrefix(text, "[ BUG") {
		return "", 0, false
	}
	for i := range beginnings {
		if b := &beginnings[i]; b.line.MatchString(text) {
			return b.kind, b.end, true
		}
	}
	return "", 0, false
}

// traceLine matches lines that may be part of a trace (lib/dump_stack.c, arch/x86/kernel/dumpstack.c,
// arch/arm64/kernel/process.c, kernel/locking/lockdep.c, kernel/rcu/tree_stall.h, kernel/workqueue.c).
var traceLine = regexp.MustCompile(`^ |^$|\+0x[0-9a-f]+/0x[0-9a-f]+|` +
	`^(CPU|RIP|RSP|R[A-D]X|RBP|R\d\d|FS|CS|CR\d|DR\d|PKRU|Code|Call Trace|Call trace|Modules linked in|Hardware name|` +
	`Tainted|Workqueue|Sending NMI|NMI backtrace|task|rcu|Stack|"echo 0|pc :|lr :|sp :|x\d+ *:|pstate|` +
	`Preemption disabled|in_atomic|preempt_count|RCU nest depth|Showing|workqueue|other info|stack backtrace|but |` +
	`the existing|which lock|page|flags|raw|head|pool|irq event|hardirqs|softirqs|Future hung|watchdog|Kernel Offset|` +
	`Rebooting|---\[|<|=====|-----|\d+ locks? held|no locks held|#\d|[\d.]+\S* #\d|\S+/\d+ is |[0-9a-f]{8,16} )`)
