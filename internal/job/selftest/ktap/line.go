package ktap

import (
	"cmp"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// resultLine is a line that begins with "ok" or "not ok".
type resultLine struct {
	ok        bool
	number    int
	name      string
	directive string // in capitals; may be ""
	text      string // after the directive, or after the hash sign
}

// directives are the directives of ktap.rst, "Test case result lines", and XPASS of kselftest.h.
var directives = map[string]bool{
	"SKIP": true, "TODO": true, "XFAIL": true, "XPASS": true, "TIMEOUT": true, "ERROR": true,
}

// parseResult reads "<result> <number> [<description>][ # [<directive>] [<diagnostic data>]]".
func parseResult(line string) (r resultLine, found bool) {
	rest, not := strings.CutPrefix(line, "not ")
	rest, found = strings.CutPrefix(rest, "ok ")
	if !found {
		return r, false
	}
	r.ok = !not
	digits := strings.TrimLeft(rest, " ")
	rest = strings.TrimLeft(digits, "0123456789")
	number, err := strconv.Atoi(digits[:len(digits)-len(rest)])
	if err != nil || rest != "" && rest[0] != ' ' {
		return r, false
	}
	r.number = number
	rest = " " + strings.TrimSpace(rest)
	name, comment, _ := strings.Cut(rest, " #")
	r.name = strings.TrimPrefix(strings.TrimSpace(name), "- ") // TAP 14 has this dash
	comment = strings.TrimSpace(comment)
	word, text, _ := strings.Cut(comment, " ")
	// kselftest.h writes "error" in small letters.
	if d := strings.ToUpper(strings.TrimSuffix(word, ":")); directives[d] {
		r.directive, r.text = d, strings.TrimSpace(text)
	} else {
		r.text = comment
	}
	return r, true
}

// parsePlan reads "1..N", and "1..0 # SKIP reason" (ktap_helpers.sh, ktap_skip_all). skip is the reason; "": no SKIP.
func parsePlan(line string) (n int, skip string, found bool) {
	rest, found := strings.CutPrefix(line, "1..")
	if !found {
		return 0, "", false
	}
	digits, comment, _ := strings.Cut(rest, "#")
	n, err := strconv.Atoi(strings.TrimSpace(digits))
	if err != nil || n < 0 {
		return 0, "", false
	}
	if text, ok := strings.CutPrefix(strings.TrimSpace(comment), "SKIP"); ok && n == 0 {
		skip = cmp.Or(strings.TrimSpace(text), "no reason is given")
	}
	return n, skip, true
}

func isVersion(line string) bool {
	return strings.HasPrefix(line, "KTAP version ") || strings.HasPrefix(line, "TAP version ")
}

// Totals is what kselftests print at their end: "# Totals: pass:1 fail:0 xfail:0 xpass:0 skip:0 error:0".
type Totals struct{ Pass, Fail, XFail, XPass, Skip, Error int }

func (t Totals) words() string {
	return fmt.Sprintf("pass %d, fail %d, xfail %d, xpass %d, skip %d, error %d", t.Pass, t.Fail, t.XFail, t.XPass, t.Skip,
		t.Error)
}

// sum returns t with the errors added to the failures, because a program may count an error as either.
func (t Totals) sum() Totals {
	t.Fail, t.Error = t.Fail+t.Error, 0
	return t
}

var totalsLine = regexp.MustCompile(
	`^Totals: pass:(\d{1,6}) fail:(\d{1,6}) xfail:(\d{1,6}) xpass:(\d{1,6}) skip:(\d{1,6}) error:(\d{1,6})$`)

func parseTotals(comment string) (t Totals, found bool) {
	m := totalsLine.FindStringSubmatch(comment)
	if m == nil {
		return t, false
	}
	for i, to := range []*int{&t.Pass, &t.Fail, &t.XFail, &t.XPass, &t.Skip, &t.Error} {
		*to, _ = strconv.Atoi(m[i+1])
	}
	return t, true
}

// escape matches a control sequence of terminals, or a two-byte control function of the C1 set (ECMA-48, 5.4 and 5.3).
var escape = regexp.MustCompile("\x1b(\\[[0-?]*[ -/]*[@-~]|[@-Z\\\\-_])")

// Clean makes valid UTF-8 text of a guest's bytes. It removes control sequences and carriage returns, makes tabs
// spaces, and replaces invalid bytes, other control characters and format characters by U+FFFD.
func Clean(line []byte) string {
	s := string(line)
	if strings.IndexByte(s, 0x1b) >= 0 {
		s = escape.ReplaceAllString(s, "")
	}
	if !strings.ContainsFunc(s, func(c rune) bool { return c < 0x20 || c >= 0x7f }) {
		return s
	}
	return strings.Map(func(c rune) rune {
		switch {
		case c == '\t':
			return ' '
		case c == '\r':
			return -1
		case unicode.IsControl(c), unicode.Is(unicode.Cf, c), c == 0xfffe, c == 0xffff:
			return utf8.RuneError // Cf: format characters may reverse the direction of text
		}
		return c
	}, strings.ToValidUTF8(s, string(utf8.RuneError)))
}
