package main

import (
	"io"
	"os"

	"golang.org/x/term"
)

// isTerminal says whether w is a terminal that a person looks at.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd())) && os.Getenv("TERM") != "dumb"
}

// colored says whether colour is of use on w (https://no-color.org).
func colored(w io.Writer) bool { return os.Getenv("NO_COLOR") == "" && isTerminal(w) }

// The eight basic colours, which every terminal has.
func red(w io.Writer, s string) string    { return paint(w, "31", s) }
func green(w io.Writer, s string) string  { return paint(w, "32", s) }
func yellow(w io.Writer, s string) string { return paint(w, "33", s) }

func paint(w io.Writer, code, s string) string {
	if !colored(w) {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}
