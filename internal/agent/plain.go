package agent

import (
	"strings"
	"unicode"
)

// Obeyed reports whether a terminal may interpret a character, or reorder the text around it:
// control characters, including C1 (U+0080 to U+009F), line and paragraph separators, and Unicode's
// Bidi_Control.
func Obeyed(r rune) bool {
	return unicode.IsControl(r) || unicode.In(r, unicode.Bidi_Control, unicode.Zl, unicode.Zp)
}

// Plain removes escape sequences, characters that are Obeyed and invalid UTF-8 from a guest's text,
// so that it can be printed on a terminal. A tab becomes a space. Of an escape sequence Plain removes ESC,
// all digits and characters [, ? and ; that follow, and the next character.
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
