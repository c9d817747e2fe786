package agent

import "strings"

// Plain drops escape sequences and control characters, lines' ends too: what a guest says is not fit for a terminal as
// it is.
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
		case r < ' ' || (r >= 0x7f && r < 0xa0) || r == 0xfffd:
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}
