package main

import (
	"os"
	"strings"
	"testing"
	"vnic.dev/vnic/internal/testkit"
)

// main.go has at most 60 lines after its imports, without empty lines and lines of comment: a device of another type
// needs little code.
func TestProgramIsSmall(t *testing.T) {
	program := string(testkit.Must(os.ReadFile("main.go"))(t))
	_, body, _ := strings.Cut(program, "\n)\n") // after the imports
	n := 0
	for line := range strings.Lines(body) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "//") {
			n++
		}
	}
	if n > 60 {
		t.Errorf("%d lines of its own", n)
	}
}

// The tutorial's blocks of Go, joined by empty lines, are main.go unchanged.
func TestTutorialShowsThisProgram(t *testing.T) {
	const tutorial = "../../tutorial-vhost-user-device.md"
	text := testkit.Must(os.ReadFile(tutorial))(t)
	program := testkit.Must(os.ReadFile("main.go"))(t)
	var shown strings.Builder
	in := false
	for line := range strings.Lines(string(text)) {
		switch {
		case !in && line == "```go\n":
			in = true
			if shown.Len() > 0 {
				shown.WriteByte('\n')
			}
		case in && line == "```\n":
			in = false
		case in:
			shown.WriteString(line)
		}
	}
	if shown.String() != string(program) {
		t.Errorf("the Go of %s is not main.go:\n%s", tutorial, shown.String())
	}
}
