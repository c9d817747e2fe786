package splat

import (
	"regexp"
	"strings"
)

type block struct {
	splat Splat
	ends  end
	cut   bool   // it began with "cut here"
	named bool   // kind and title have come
	words string // the first line between "cut here" and the title: a WARN's text (lib/bug.c, __report_bug)
}

// holds reports whether a line belongs to the block.
func (b *block) holds(text string, kind Kind, begins bool) bool {
	switch {
	case !begins:
		return b.ends != trace || traceLine.MatchString(text)
	case text == cutHere || kind == Panic:
		return false
	case !b.named:
		return true
	}
	// a later line of the same oops or BUG() (arch/x86/kernel/dumpstack.c, __die_header)
	return (b.splat.Kind == Oops || b.splat.Kind == Bug) && dieHeader.MatchString(text)
}

func (b *block) add(text string, kind Kind, ends end, begins bool) {
	if len(b.splat.Lines) < MaxLines {
		b.splat.Lines = append(b.splat.Lines, text)
	} else {
		b.splat.Dropped++
	}
	switch {
	case b.named || text == cutHere:
	case begins:
		b.named, b.splat.Kind, b.splat.Title = true, kind, text
		if !b.cut {
			b.ends = ends // after cutHere the marker stays the block's end
		}
	case b.words == "":
		b.words = text
	}
}

func (b *block) ended(text string) bool {
	switch b.ends {
	case oneLine:
		return true
	case marker:
		return strings.HasPrefix(text, endTrace)
	case equals:
		return strings.HasPrefix(text, equalsLine)
	case panicEnd:
		return strings.HasPrefix(text, endPanic)
	}
	return false
}

func (b *block) complete() Splat {
	s := &b.splat
	s.Function, s.Module = b.function()
	switch {
	case s.Title == "" && b.words == "":
		s.Title = s.Lines[0]
	case s.Title == "":
		s.Title = b.words
	case b.words != "":
		s.Title += ": " + b.words
	}
	return *s
}

var (
	// a function, an offset, its size, and perhaps its module, as "function+0x17/0x50 [gve]"
	symbol = regexp.MustCompile(`([A-Za-z_][\w.]*)\+0x[0-9a-f]+/0x[0-9a-f]+(?: \[([\w-]+)[^\]]*\])?`)
	// the line with the instruction pointer: arch/x86/kernel/dumpstack.c, show_ip; on arm64 pc
	place = regexp.MustCompile(`^(RIP: |pc : )`)
	// functions that are not to blame: they handle exceptions, report complaints, wait, lock, or copy or set memory
	reporters = regexp.MustCompile(`^_*(dump_stack|show_stack|print_|kasan_|kmsan_|kcsan_|kfence_|ubsan_|asan_|` +
		`check_region|report_|schedule|might_|cant_|lockdep_|lock_acquire|lock_release|validate_chain|mark_lock|panic|` +
		`vpanic|warn|handle_bug|exc_|asm_|nmi_|watchdog_|refcount_warn|mutex_lock|memcpy$|memset$|memmove$)`)
)

// function returns the function to blame and its module, "" if there is none. It looks at the first function in each
// line, and takes the first one that does not match reporters: in lines with the instruction pointer; else in the
// title; else in all kept lines of the block, without the unwinder's guesses.
func (b *block) function() (name, module string) {
	find := func(text string) bool {
		m := symbol.FindStringSubmatch(text)
		if m == nil || reporters.MatchString(m[1]) {
			return false
		}
		name, module = m[1], m[2]
		return true
	}
	for _, l := range b.splat.Lines {
		if place.MatchString(l) && find(l) {
			return name, module
		}
	}
	if find(b.splat.Title) {
		return name, module
	}
	for _, l := range b.splat.Lines {
		if !strings.HasPrefix(strings.TrimSpace(l), "?") && find(l) { // "?": a guess of the unwinder
			return name, module
		}
	}
	return "", ""
}
