package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"vnic.dev/vnic/internal/agent"
)

// Text from guests, servers, files and other programs is printed without the characters that
// control a terminal (agent.Plain removes them). TestEachPrintIsPlain fails for code that prints in
// another way than by these functions.

// printText prints the text that f writes, for people.
func printText(w io.Writer, f func(io.Writer) error) error {
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

// printJSON prints one JSON object, for programs.
func printJSON(w io.Writer, v any) error {
	return printEncoded(w, func(w io.Writer) error {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(v)
	})
}

// printEncoded prints the JSON that f writes, and escapes characters that control a terminal.
// encoding/json escapes only those below U+0020.
func printEncoded(w io.Writer, f func(io.Writer) error) error {
	var b bytes.Buffer
	if err := f(&b); err != nil {
		return err
	}
	var clean strings.Builder
	for _, r := range b.String() {
		if r != '\n' && agent.Obeyed(r) { // only strings can contain such characters
			fmt.Fprintf(&clean, `\u%04x`, r)
		} else {
			clean.WriteRune(r)
		}
	}
	_, err := io.WriteString(w, clean.String())
	return err
}

// plainly formats a message of vnic, as fmt.Sprintf does. Its arguments may be text from guests and
// other programs: each is formatted in one line, without characters that control a terminal.
func plainly(format string, args ...any) string {
	if false {
		_ = fmt.Sprintf(format, args...) // so that go vet checks plainly's callers as Sprintf's
	}
	plain := make([]any, len(args))
	for i, a := range args {
		if plain[i] = a; !isInt(a) { // an int may be a width, which Sprintf needs unwrapped
			plain[i] = inLine{a}
		}
	}
	return fmt.Sprintf(format, plain...)
}

func isInt(a any) bool { _, ok := a.(int); return ok }

// inLine wraps an argument of fmt's functions, so that it is formatted in one line, without
// characters that control a terminal (agent.Plain).
type inLine struct{ v any }

// Format implements fmt.Formatter. It replaces newlines by "; ".
func (p inLine) Format(f fmt.State, verb rune) {
	text := fmt.Sprintf(fmt.FormatString(f, verb), p.v)
	_, _ = io.WriteString(f, agent.Plain(strings.ReplaceAll(text, "\n", "; ")))
}
