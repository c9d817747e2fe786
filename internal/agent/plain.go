package agent

import (
	"strings"
	"unicode"
)

// Obeyed reports whether a terminal may interpret a character, or reorder the text around it.
func Obeyed(r rune) bool {
	return unicode.IsControl(r) || unicode.In(r, unicode.Bidi_Control, unicode.Zl, unicode.Zp)
}

// Plain makes a guest's text printable on a terminal: it removes ESC with the characters [, ?, ; and digits after it
// and one character more, all other Obeyed characters but tabs, U+FFFD and invalid UTF-8. A tab becomes a space.
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
