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

var panicFrame = regexp.MustCompile(`\bv?panic\+0x`)

// panicMark begins the message of Linux's panic (kernel/panic.c, vpanic).
const panicMark = "Kernel panic - not syncing"

// panicLine returns the last kernel panic's message; "": none. Characters of it may be lost, because Linux waits at
// most 10 ms for the serial port (drivers/tty/serial/8250, wait_for_lsr). If the console then has a stack with panic,
// panicLine returns a text that says so.
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
	panicLinesMax = 24   // lines in the result
	panicLineMax  = 200  // bytes of a line; the rest becomes "..."
	panicBefore   = 4    // lines shown before a panic's message, if none matches complaint
	panicApart    = 8    // most lines from one match of complaint back to another of the same error
	panicLooked   = 1000 // last lines that are searched
)

var (
	// stamp matches printk's time, and the caller (CONFIG_PRINTK_CALLER).
	stamp = regexp.MustCompile(`^\[ *\d+\.\d+\](\[ *[TC]\d+\])? ?`)
	// complaint matches the first line of a kernel's error or warning (as in arch/x86/kernel/dumpstack.c,
	// arch/x86/mm/fault.c, arch/arm64/kernel/traps.c, lib/bug.c, kernel/panic.c, mm/kasan/report.c).
	complaint = regexp.MustCompile(`^(BUG: |Oops: |kernel BUG at |Unable to handle kernel |Internal error: |WARNING: |` +
		`UBSAN: |general protection fault|divide error|invalid opcode|double fault|traps: PANIC|watchdog: BUG|` +
		`INFO: (rcu_|task ))`)
	// place matches lines that tell where the error happened, frame the lines of a trace except guesses ("? f").
	place = regexp.MustCompile(`^(RIP: |pc : |lr : |#PF: |CPU: |Workqueue: |Call [Tt]race:)`)
	frame = regexp.MustCompile(`^[\w.]+\+0x[0-9a-f]+/0x[0-9a-f]+`)
)

// panicLines returns the lines of a console that explain its last kernel panic, at most panicLinesMax: lines that match
// complaint (or else the lines before the message), place and frame, and the message.
func panicLines(console []byte) (lines []string) {
	tail := proc.LastLines(console, panicLooked)
	if len(tail) == 0 {
		return nil
	}
	text := make([]string, len(tail))
	for i, l := range tail {
		if len(l) > panicLineMax {
			l = strings.ToValidUTF8(l[:panicLineMax], "") + "..."
			tail[i] = l
		}
		text[i] = strings.TrimSpace(stamp.ReplaceAllString(l, ""))
	}
	last := len(text) - 1
	for last >= 0 && !strings.Contains(text[last], panicMark) {
		last--
	}
	for i := len(text) - 1; last < 0 && i > 0; i-- { // the message is incomplete
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
		lines = append(lines, tail[first:last]...)
		first = last
	}
	var known []string
	for i := first; i < len(text); i++ {
		t := text[i]
		if (complaint.MatchString(t) || place.MatchString(t) || frame.MatchString(t) || strings.HasPrefix(t, panicMark)) &&
			!slices.Contains(known, t) { // a kernel error repeats its place
			known, lines = append(known, t), append(lines, tail[i])
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
