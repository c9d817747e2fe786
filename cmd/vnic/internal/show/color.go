// Package show shows the user of a command what goes on, and what came of it: progress and notes on stderr, tables and
// JSON on stdout.
package show

import (
	"io"
	"os"

	"golang.org/x/term"
)

// IsTerminal reports whether w is a terminal that a person looks at.
func IsTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd())) && os.Getenv("TERM") != "dumb"
}

// colored reports whether w shows colours (https://no-color.org).
func colored(w io.Writer) bool { return os.Getenv("NO_COLOR") == "" && IsTerminal(w) }

// The eight basic colours, which every terminal has.
func Red(w io.Writer, s string) string    { return Paint(w, "31", s) }
func Green(w io.Writer, s string) string  { return Paint(w, "32", s) }
func Yellow(w io.Writer, s string) string { return Paint(w, "33", s) }

// Paint writes a text in a colour, if w shows colours.
func Paint(w io.Writer, code, s string) string {
	if !colored(w) {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}
