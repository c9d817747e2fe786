package jsonlines

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/version"
)

const maxLine = 4 << 10

var protocol = Protocol{Version: 2, MaxLine: maxLine, Who: "it", Fix: "mend it"}

func TestWriterStartsANewLineAfterABrokenOne(t *testing.T) {
	b := &shortWriter{limit: 5}
	w := NewWriter(b, 2, maxLine)
	testkit.ErrorIs(t, w.Send(&Message{Event: "a"}), io.ErrShortWrite)
	b.limit = 1000
	testkit.OK(t, w.Send(&Message{Event: "b"}))
	testkit.OK(t, w.Send(&Message{Event: "c"}))
	testkit.Equal(t, "written", b.String(), "{\"eve\n"+`{"event":"b","hello":{"protocol":2,"vnic":"`+version.String()+
		"\"}}\n{\"event\":\"c\"}\n")
}

type shortWriter struct {
	strings.Builder
	limit int
}

func (w *shortWriter) Write(p []byte) (int, error) {
	n := min(len(p), w.limit)
	_, _ = w.Builder.Write(p[:n])
	if n < len(p) {
		return n, io.ErrShortWrite
	}
	return n, nil
}

// Next returns an error for a line that is too long, keeps little of it, and then reads the next line.
func TestLongLinesAreSkipped(t *testing.T) {
	r := NewReader(strings.NewReader(strings.Repeat("x", 100*maxLine)+"\n{\"id\":1}\n{\"id\":2}"), protocol)
	testkit.ErrorIs(t, testkit.Err(r.Next()), ErrTooLong)
	for id := range 2 {
		m, _ := r.Next()
		testkit.Equal(t, "id", m.ID, uint64(id+1))
	}
	testkit.ErrorIs(t, testkit.Err(r.Next()), io.EOF)
	endless := NewReader(io.MultiReader(strings.NewReader(strings.Repeat("x", maxLine)), never{t}), protocol)
	testkit.ErrorIs(t, testkit.Err(endless.Next()), ErrTooLong)
	if cap(endless.line) > 2*maxLine {
		t.Errorf("%d bytes are kept", cap(endless.line))
	}
}

// never is a reader that fails the test when it is read.
type never struct{ t *testing.T }

func (n never) Read([]byte) (int, error) {
	n.t.Error("it reads on")
	return 0, io.EOF
}

// If the first message has another protocol version or none, Next returns a version.Error with it and with the next
// message.
func TestFirstMessageDecides(t *testing.T) {
	for first, want := range map[string]string{
		`{"id":1,"hello":{"protocol":2,"vnic":"other"}}`: "",
		`{"id":1,"hello":{"protocol":2}}`:                "",
		`{"id":1,"hello":{"protocol":3,"vnic":"v9"}}`:    "it is of vnic v9 (protocol 3), this is vnic ",
		`{"id":1}`:                               "it is of an older vnic, which does not say its version, this is vnic ",
		`{"event":"boot"}`:                       "it is of an older vnic, which does not say its version, this is vnic ",
		`{"say":"hello","hello":{"protocol":1}}`: "it is of an older vnic (protocol 1), this is vnic ",
	} {
		r := NewReader(strings.NewReader("noise\n{}\n"+first+"\n{\"id\":2,\"hello\":{\"protocol\":2}}\n"), protocol)
		for range 2 {
			testkit.ErrorIs(t, testkit.Err(r.Next()), ErrNoMessage)
		}
		for range 2 {
			m, err := r.Next()
			if refused := version.Error(""); m == nil || errors.As(err, &refused) != (want != "") ||
				want != "" && !strings.HasPrefix(err.Error(), want) {
				t.Errorf("%s: %+v, %v", first, m, err)
			}
		}
	}
}

func TestAnswerThatIsTooLong(t *testing.T) {
	var b strings.Builder
	w := NewWriter(&b, 2, maxLine)
	testkit.OK(t, w.Answer(7, strings.Repeat("x", maxLine), nil))
	m, err := NewReader(strings.NewReader(b.String()), protocol).Next()
	testkit.OK(t, err)
	if m.ID != 7 || m.Error == nil || !strings.Contains(*m.Error, "too long") {
		t.Errorf("%s", b.String())
	}
}

// A decoded message with an id or event keeps its id, event, operation and cancellation if encoded and decoded again.
func FuzzLines(f *testing.F) {
	f.Add([]byte("{\"id\":1,\"ok\":null}\n\n{\"event\":\"boot\"}\r\n"))
	f.Add([]byte("{\"id\":1,\"error\":\"x\",\"progress\":[1]}\nhalf"))
	f.Add([]byte("{\"say\":\"hello\",\"hello\":{\"protocol\":1}}\n{\"id\":2,\"cancel\":true}"))
	f.Add([]byte(strings.Repeat("x", maxLine+1) + "\n{\"id\":1,\"op\":\"set\",\"args\":{}}"))
	f.Fuzz(func(t *testing.T, b []byte) {
		in := NewReader(strings.NewReader(string(b)), protocol)
		for lines := 0; ; lines++ {
			m, err := in.Next()
			switch {
			case m == nil && (errors.Is(err, ErrTooLong) || errors.Is(err, ErrNoMessage)):
			case m == nil:
				testkit.ErrorIs(t, err, io.EOF)
				return
			case m.ID == 0 && m.Event == "" && m.Hello == nil:
				t.Fatalf("%+v", m)
			default:
				checkWritten(t, m)
			}
			if lines > len(b) || cap(in.line) > 2*maxLine {
				t.Fatalf("%d lines, %d bytes kept", lines, cap(in.line))
			}
		}
	})
}

func checkWritten(t *testing.T, m *Message) {
	was := fmt.Sprintf("%d %s %s %v", m.ID, m.Event, m.Op, m.Cancel)
	var out strings.Builder
	testkit.OK(t, NewWriter(&out, 2, 100*maxLine).Send(m))
	wide := protocol
	wide.MaxLine = 100 * maxLine
	m, err := NewReader(strings.NewReader(out.String()), wide).Next()
	if m.ID == 0 && m.Event == "" { // the message had only a hello, which Send replaces
		return
	}
	testkit.OK(t, err)
	testkit.Equal(t, "again", fmt.Sprintf("%d %s %s %v", m.ID, m.Event, m.Op, m.Cancel), was)
}
