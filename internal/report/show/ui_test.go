package show

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"vnic.dev/vnic/internal/machine/assets"
	"vnic.dev/vnic/internal/session"
	"vnic.dev/vnic/internal/testkit"
)

// screen returns the lines that a terminal shows after it has received b, without spaces at their ends. It fails the
// test at an escape sequence that it does not handle.
func screen(t *testing.T, b string) string {
	t.Helper()
	lines := [][]rune{nil}
	col := 0
	for b != "" {
		line := &lines[len(lines)-1]
		var n int
		switch {
		case strings.HasPrefix(b, "\x1b[K"):
			*line, n = (*line)[:min(col, len(*line))], 3
		case strings.HasPrefix(b, "\x1b[0K"):
			*line, n = (*line)[:min(col, len(*line))], 4
		case strings.HasPrefix(b, "\x1b[2K"):
			*line, n = nil, 4
		case b[0] == '\x1b':
			t.Fatalf("a sequence that this terminal does not know: %q", b[:min(8, len(b))])
		case b[0] == '\r':
			col, n = 0, 1
		case b[0] == '\n':
			lines, col, n = append(lines, nil), 0, 1
		default:
			r := []rune(b[:min(4, len(b))])[0]
			for len(*line) <= col {
				*line = append(*line, ' ')
			}
			(*line)[col] = r
			col, n = col+1, len(string(r))
		}
		b = b[n:]
	}
	var s strings.Builder
	for i, l := range lines {
		if i > 0 {
			s.WriteByte('\n')
		}
		s.WriteString(strings.TrimRight(string(l), " "))
	}
	return s.String()
}

func TestTerminalHasOneProgressLine(t *testing.T) {
	var b bytes.Buffer
	u := &UI{w: &b, tty: true, stop: make(chan struct{})}
	shows := func(want string) {
		t.Helper()
		if got := screen(t, b.String()); !strings.HasPrefix(got, want) || strings.Count(got, "\n") != strings.Count(want,
			"\n") {
			t.Fatalf("the screen shows %q, not %q", got, want)
		}
	}
	u.Stage(session.Step{Stage: "fetch"})
	shows("looking for QEMU and a kernel")
	u.Fetch(assets.Progress{Step: "update", What: "forky"})
	shows("update forky")
	u.Fetch(assets.Progress{Step: "download", What: "kernel", Done: 10, Total: 100})
	shows("download kernel  10% ")
	u.Fetch(assets.Progress{Step: "build", What: "tests"})
	shows("build tests")
	u.Fetch(assets.Progress{Step: "build", What: "tests", Done: 7})
	u.paint()
	shows("build tests: 7 steps")
	u.Note("%s is untested", "this")
	shows("note: this is untested\n")
	u.Stage(session.Step{Stage: "boot"})
	shows("note: this is untested\nbooting guests")
	for round := 1; round <= 3; round++ {
		u.Stage(session.Step{Stage: "prepare", Mode: "copy", Round: round, Rounds: 3})
		u.Stage(session.Step{Stage: "transfer", Mode: "copy", Round: round, Rounds: 3})
		u.Progress("copy", uint64(round)*30, 90)
		u.Stage(session.Step{Stage: "verify", Mode: "copy", Round: round, Rounds: 3})
		if round == 2 {
			shows("note: this is untested\ncopy, round 2 of 3  66% ")
			testkit.Must(u.Write([]byte("a log line\n")))(t)
			shows("note: this is untested\na log line\n")
		}
	}
	shows("note: this is untested\na log line\ncopy: digesting what arrived")
	if !strings.Contains(b.String(), "copy, round 3 of 3 100% ") { // shown until the last verify stage replaced it
		t.Errorf("the bar was never full: %q", b.String())
	}
	u.Done()
	shows("note: this is untested\na log line\n")
}

func TestLogHasFewLines(t *testing.T) {
	play := func(quiet bool) string {
		var b bytes.Buffer
		u := New(&b, quiet)
		u.Stage(session.Step{Stage: "fetch"})
		for i := range int64(100) {
			u.Fetch(assets.Progress{Step: "download", What: "qemu", Done: i, Total: 100})
		}
		u.Note("a note")
		for i := range int64(120) {
			u.Fetch(assets.Progress{Step: "build", What: "tests", Done: i})
		}
		for round := 1; round <= 10; round++ {
			for _, s := range []string{"prepare", "connect", "transfer", "verify"} {
				u.Stage(session.Step{Stage: s, Mode: "devmem", Round: round, Rounds: 10})
				if s == "transfer" {
					u.Progress("devmem", uint64(round)*10-5, 100)
					u.Progress("devmem", min(uint64(round)*10, 95), 100) // the last report may be below 100 %, here 95 %
				}
			}
		}
		u.Done()
		return b.String()
	}
	const want = `stage: fetch
  download qemu: 25%
  download qemu: 50%
  download qemu: 75%
note: a note
  download qemu: 100%
  build tests
  build tests: 25 steps
  build tests: 50 steps
  build tests: 100 steps
stage: prepare
stage: connect
stage: transfer
stage: verify
  devmem: 25%
  devmem: 50%
  devmem: 75%
  devmem: 100%
`
	testkit.Equal(t, "it writes", play(false), want)
	testkit.Equal(t, "beside JSON", play(true), "note: a note\n")
}

type rude struct{}

func (rude) Table(w io.Writer) error {
	_, err := io.WriteString(w, "disk \x1b[31mred\x07\r of\nnext\n")
	return err
}

func TestServersWordsAreShownPlain(t *testing.T) {
	var b strings.Builder
	testkit.OK(t, Text(&b, rude{}.Table))
	testkit.Equal(t, "table", b.String(), "disk red of\nnext\n")
}

const rudeText = "a\x1b[31mb\x07c\u009b31md\u202egpj\u2028e\x7f"

func TestNotesArePlain(t *testing.T) {
	type named string
	for name, arg := range map[string]any{"string": rudeText, "error": errors.New(rudeText), "named": named(rudeText),
		"list": []string{rudeText}, "struct": struct{ Text string }{rudeText}} {
		var b strings.Builder
		u := New(&b, false)
		u.Note("%s: %v, %5d, %*d, %-4s|", "guest0\nnote: fine", arg, 7, 3, 8, time.Second)
		u.Done()
		got := b.String()
		if want := "note: guest0; note: fine: "; !strings.HasPrefix(got, want) || !strings.Contains(got, "abc31mdgpje") ||
			!strings.HasSuffix(got, ",     7,   8, 1s  |\n") || strings.Count(got, "\n") != 1 ||
			strings.ContainsAny(got, "\x1b\x07\u009b\u202e\u2028\x7f") {
			t.Errorf("%s: %q", name, got)
		}
	}
}

func TestJSONIsPlain(t *testing.T) {
	in := map[string]string{rudeText: rudeText + "\u2066\u061c \"ü\" 你好 \U0001f600"}
	var b strings.Builder
	testkit.OK(t, JSON(&b, in))
	if strings.ContainsAny(b.String(), "\x1b\x07\u009b\u202e\u2028\x7f\u2066\u061c") ||
		!strings.Contains(b.String(), `\u009b31md\u202egpj\u2028e\u007f\u2066\u061c`) || !strings.Contains(b.String(), "ü") {
		t.Errorf("%q", b.String())
	}
	var out map[string]string
	testkit.OK(t, json.Unmarshal([]byte(b.String()), &out))
	testkit.Equal(t, "read again", out[rudeText], in[rudeText])
}
