// Package show shows the user of a command its progress and its results.
package show

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/term"

	"vnic.dev/vnic/internal/agent"
	"vnic.dev/vnic/internal/report"
)

// Texts from elsewhere may have control codes for the terminal. Text and Plainly remove them by agent.Plain; JSON and
// Encoded escape them.

// Text prints the text that f writes, without control codes, even if f returns an error.
func Text(w io.Writer, f func(io.Writer) error) error {
	var b, clean strings.Builder
	err := f(&b)
	for line := range strings.Lines(b.String()) {
		clean.WriteString(agent.Plain(line) + "\n")
	}
	if _, werr := io.WriteString(w, clean.String()); err == nil {
		err = werr
	}
	return err
}

// Report prints v as JSON if asJSON is true, else the text that table writes.
func Report(w io.Writer, asJSON bool, v any, table func(io.Writer) error) error {
	if asJSON {
		return JSON(w, v)
	}
	return Text(w, table)
}

// JSON prints v as JSON.
func JSON(w io.Writer, v any) error {
	return Encoded(w, func(w io.Writer) error { return report.Encoder(w).Encode(v) })
}

// Encoded prints the JSON that f writes, and escapes control codes for terminals: encoding/json escapes only some of
// them. If f returns an error, Encoded prints nothing.
func Encoded(w io.Writer, f func(io.Writer) error) error {
	var b bytes.Buffer
	if err := f(&b); err != nil {
		return err
	}
	var clean strings.Builder
	for _, r := range b.String() {
		if r != '\n' && agent.Obeyed(r) {
			fmt.Fprintf(&clean, `\u%04x`, r)
		} else {
			clean.WriteRune(r)
		}
	}
	_, err := io.WriteString(w, clean.String())
	return err
}

// Plainly is fmt.Sprintf for untrusted arguments: it formats each argument in one line, without control codes for the
// terminal.
func Plainly(format string, args ...any) string {
	if false {
		_ = fmt.Sprintf(format, args...) // so that go vet checks Plainly's callers as Sprintf's
	}
	plain := make([]any, len(args))
	for i, a := range args {
		if plain[i] = a; !isInt(a) { // an int may be a width
			plain[i] = inLine{a}
		}
	}
	return fmt.Sprintf(format, plain...)
}

func isInt(a any) bool { _, ok := a.(int); return ok }

// inLine wraps an argument, for Plainly.
type inLine struct{ v any }

// Format implements fmt.Formatter. It replaces ends of lines by "; ", and removes control codes.
func (p inLine) Format(f fmt.State, verb rune) {
	text := fmt.Sprintf(fmt.FormatString(f, verb), p.v)
	_, _ = io.WriteString(f, agent.Plain(strings.ReplaceAll(text, "\n", "; ")))
}

// IsTerminal reports whether w is a terminal that understands control codes: TERM is not "dumb".
func IsTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd())) && os.Getenv("TERM") != "dumb"
}

// colored reports whether w shows colours: it is a terminal (IsTerminal), and NO_COLOR is empty (https://no-color.org).
func colored(w io.Writer) bool { return os.Getenv("NO_COLOR") == "" && IsTerminal(w) }

// Red returns s in red if w shows colours, else s.
func Red(w io.Writer, s string) string { return Paint(w, "31", s) }

// Green returns s in green if w shows colours, else s.
func Green(w io.Writer, s string) string { return Paint(w, "32", s) }

// Yellow returns s in yellow if w shows colours, else s.
func Yellow(w io.Writer, s string) string { return Paint(w, "33", s) }

// Paint returns s with the codes of a colour around it if w shows colours, else s.
func Paint(w io.Writer, code, s string) string {
	if !colored(w) {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}
