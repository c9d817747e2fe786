// Package show shows the user of a command what goes on, and what came of it: progress and notes on stderr, tables and
// JSON on stdout.
package show

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/term"

	"vnic.dev/vnic/internal/agent"
)

// What guests, servers, files and other programs say is shown without what a terminal obeys: agent.Plain decides what
// that is. TestEachPrintIsPlain finds what is printed in another way than by these functions.

// Text prints what f writes, for people.
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

// Report prints v as one object if asJSON, else what table writes.
func Report(w io.Writer, asJSON bool, v any, table func(io.Writer) error) error {
	if asJSON {
		return JSON(w, v)
	}
	return Text(w, table)
}

// JSON prints one object, for programs.
func JSON(w io.Writer, v any) error {
	return Encoded(w, func(w io.Writer) error {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(v)
	})
}

// Encoded prints JSON that f writes. encoding/json escapes what is below U+0020 and leaves the rest.
func Encoded(w io.Writer, f func(io.Writer) error) error {
	var b bytes.Buffer
	if err := f(&b); err != nil {
		return err
	}
	var clean strings.Builder
	for _, r := range b.String() {
		if r != '\n' && agent.Obeyed(r) { // only strings have such
			fmt.Fprintf(&clean, `\u%04x`, r)
		} else {
			clean.WriteRune(r)
		}
	}
	_, err := io.WriteString(w, clean.String())
	return err
}

// Plainly formats a message of vnic's. Its arguments may be words of guests and other programs: each is printed in one
// line, without what a terminal obeys.
func Plainly(format string, args ...any) string {
	if false {
		_ = fmt.Sprintf(format, args...) // so that go vet checks Plainly's callers as Sprintf's
	}
	plain := make([]any, len(args))
	for i, a := range args {
		if plain[i] = a; !isInt(a) { // which may be a width
			plain[i] = inLine{a}
		}
	}
	return fmt.Sprintf(format, plain...)
}

func isInt(a any) bool { _, ok := a.(int); return ok }

// inLine wraps an argument of fmt's functions: it is formatted in one line, without what a terminal obeys
// (agent.Plain).
type inLine struct{ v any }

// Format implements fmt.Formatter. Ends of lines become "; ".
func (p inLine) Format(f fmt.State, verb rune) {
	text := fmt.Sprintf(fmt.FormatString(f, verb), p.v)
	_, _ = io.WriteString(f, agent.Plain(strings.ReplaceAll(text, "\n", "; ")))
}

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
