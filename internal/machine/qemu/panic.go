package qemu

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"vnic.dev/vnic/internal/agent"
	"vnic.dev/vnic/internal/proc"
)

// panicFrame is a frame in the stack of a panic.
var panicFrame = regexp.MustCompile(`\bv?panic\+0x`)

// panicMark begins the message of a kernel's panic (kernel/panic.c, vpanic).
const panicMark = "Kernel panic - not syncing"

// panicLine gives the message of a kernel's panic, or "" where there was none. On a busy machine the message may lack
// characters: Linux waits no longer than 10 ms until the serial port takes one (drivers/tty/serial/8250, wait_for_lsr).
// Then the stack below the message shows that it was a panic.
func panicLine(console []byte) string {
	i := bytes.LastIndex(console, []byte(panicMark))
	switch {
	case i < 0 && panicFrame.Match(console):
		return "its words did not come whole over the console"
	case i < 0:
		return ""
	}
	line, _, _ := bytes.Cut(console[i:], []byte("\n"))
	return agent.Plain(string(line))
}

// Bounds of panicLines.
const (
	panicLinesMax = 24
	panicLineMax  = 200  // bytes of one
	panicBefore   = 4    // lines before a panic that no complaint precedes: why the kernel gave up
	panicApart    = 8    // lines between two beginnings of one complaint
	panicLooked   = 1000 // of the console's last lines
)

var (
	// stamp is printk's time, and the caller where CONFIG_PRINTK_CALLER is set.
	stamp = regexp.MustCompile(`^\[ *\d+\.\d+\](\[ *[TC]\d+\])? ?`)
	// complaint is the first line of one (arch/x86/kernel/dumpstack.c, arch/x86/mm/fault.c, arch/arm64/kernel/traps.c,
	// lib/bug.c, kernel/panic.c, mm/kasan/report.c).
	complaint = regexp.MustCompile(`^(BUG: |Oops: |kernel BUG at |Unable to handle kernel |Internal error: |WARNING: |` +
		`UBSAN: |general protection fault|divide error|invalid opcode|double fault|traps: PANIC|watchdog: BUG|` +
		`INFO: (rcu_|task ))`)
	// place says where and in which process it was; frames are the trace's, without the guesses of the unwinder ("? f").
	place = regexp.MustCompile(`^(RIP: |pc : |lr : |#PF: |CPU: |Workqueue: |Call [Tt]race:)`)
	frame = regexp.MustCompile(`^[\w.]+\+0x[0-9a-f]+/0x[0-9a-f]+`)
)

// panicLines are the lines of a console that say why its kernel has panicked, at most panicLinesMax: what it complained
// of before, where that was, the trace, and the panic's message. Registers, code and lists of modules are left out, and
// long lines cut.
func panicLines(console []byte) (lines []string) {
	said := proc.LastLines(console, panicLooked)
	if len(said) == 0 {
		return nil
	}
	text := make([]string, len(said))
	for i, l := range said {
		if len(l) > panicLineMax {
			l = strings.ToValidUTF8(l[:panicLineMax], "") + "..."
			said[i] = l
		}
		text[i] = strings.TrimSpace(stamp.ReplaceAllString(l, ""))
	}
	last := len(text) - 1
	for last >= 0 && !strings.Contains(text[last], panicMark) {
		last--
	}
	for i := len(text) - 1; last < 0 && i > 0; i-- { // its words did not come whole
		if panicFrame.MatchString(text[i]) {
			last = i
		}
	}
	last = max(last, 0)
	first := -1
	for i := last; i >= 0 && (first < 0 || i >= first-panicApart); i-- {
		if complaint.MatchString(text[i]) {
			first = i
		}
	}
	if first < 0 {
		first = max(0, last-panicBefore)
		lines = append(lines, said[first:last]...)
		first = last
	}
	var known []string
	for i := first; i < len(text); i++ {
		t := text[i]
		if (complaint.MatchString(t) || place.MatchString(t) || frame.MatchString(t) || strings.HasPrefix(t, panicMark)) &&
			!slices.Contains(known, t) { // an oops says once more where it was
			known, lines = append(known, t), append(lines, said[i])
		}
	}
	more := len(lines) - panicLinesMax
	if more <= 0 {
		return lines
	}
	head := lines[: panicLinesMax-2 : panicLinesMax-2]
	cut := fmt.Sprintf("... %d more lines", more+1)
	if i := slices.IndexFunc(lines, func(l string) bool { return strings.Contains(l, panicMark) }); i >= len(head) {
		return append(head, cut, lines[i])
	}
	return append(head, cut)
}
