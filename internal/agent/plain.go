package agent

import (
	"strings"
	"unicode"
)

// Obeyed reports whether a terminal may obey a character, or change the order of what is shown beside it: control
// characters, C1 (U+0080 to U+009F) among them, lines' and paragraphs' ends, and Unicode's Bidi_Control.
func Obeyed(r rune) bool {
	return unicode.IsControl(r) || unicode.In(r, unicode.Bidi_Control, unicode.Zl, unicode.Zp)
}

// Plain drops escape sequences and all that is Obeyed: what a guest says is not fit for a terminal as it is.
func Plain(s string) string {
	var b strings.Builder
	inEscape := false
	for _, r := range s {
		switch {
		case r == 0x1b:
			inEscape = true
		case inEscape: // ESC [ parameters letter
			inEscape = r == '[' || r == '?' || r == ';' || (r >= '0' && r <= '9')
		case r == '\t':
			b.WriteByte(' ')
		case Obeyed(r) || r == unicode.ReplacementChar:
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}
