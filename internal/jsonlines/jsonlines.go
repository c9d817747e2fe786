// Package jsonlines is the framing of what processes of vnic say to each other in JSON, one object a line: a guest's
// agent and its host (internal/agent), the hosts that run a lab's guests together (vnic run), a running vnic and those
// who ask for its counters (vnic stat).
//
// A request is {"id":1,"op":"hello","args":{...}}. Its answer is {"id":1,"progress":...} any number of times, and at the
// end {"id":1,"ok":...} or {"id":1,"error":"..."}. {"id":1,"cancel":true} asks for an early end of a request. A line
// without an id is an event, {"event":"boot"}, which nobody answers. The first message of each end has "hello" besides:
// its vnic and its version of the protocol (package version). An end of another version is refused.
//
// Nothing that the other end says is trusted: lines are bounded, and those that are no message are told apart.
package jsonlines

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"

	"vnic.dev/vnic/internal/version"
)

// Message is a line.
type Message struct {
	ID       uint64          `json:"id,omitempty"`
	Op       string          `json:"op,omitempty"`
	Args     json.RawMessage `json:"args,omitempty"` // of a request or an event
	Cancel   bool            `json:"cancel,omitempty"`
	OK       json.RawMessage `json:"ok,omitempty"`
	Error    *string         `json:"error,omitempty"`
	Progress json.RawMessage `json:"progress,omitempty"`
	Event    string          `json:"event,omitempty"`
	Say      string          `json:"say,omitempty"` // what a host of 780d5150 calls an event
	Hello    *version.Hello  `json:"hello,omitempty"`
}

// Protocol is what both ends of a connection agree on.
type Protocol struct {
	Version int
	MaxLine int    // of what is read, in bytes
	Who     string // the other end is, in the refusal of another version
	Fix     string // that refusal's
}

// Errors of lines.
var (
	ErrTooLong   = errors.New("message too long")
	ErrNoMessage = errors.New("this is no message")
)

// lineError is an ErrNoMessage, in the words of the JSON decoder.
type lineError struct{ error }

func (lineError) Is(target error) bool { return target == ErrNoMessage }

// Reader reads messages.
type Reader struct {
	p       Protocol
	r       *bufio.Reader
	line    []byte
	rest    bool // of a line that is too long is still to be read
	greeted bool
	refused error
}

// NewReader makes a Reader.
func NewReader(r io.Reader, p Protocol) *Reader {
	return &Reader{p: p, r: bufio.NewReaderSize(r, 4096)}
}

// Next gives the next message. After ErrTooLong and ErrNoMessage, which stand for a line, there may be more. With a
// version.Error there is a message, too: each one of an end that is refused.
func (r *Reader) Next() (*Message, error) {
	var line []byte
	for len(line) == 0 {
		var err error
		if line, err = r.readLine(); err != nil {
			return nil, err
		}
	}
	m := new(Message)
	if err := json.Unmarshal(line, m); err != nil {
		return nil, lineError{err}
	}
	if m.ID == 0 && m.Event == "" && m.Hello == nil {
		return nil, ErrNoMessage
	}
	if !r.greeted {
		var theirs version.Hello
		if m.Hello != nil {
			theirs = *m.Hello
		}
		r.greeted, r.refused = true, version.Ours(r.p.Version).Check(theirs, r.p.Who, r.p.Fix)
	}
	return m, r.refused
}

// readLine gives a line without its end.
func (r *Reader) readLine() ([]byte, error) {
	r.line = r.line[:0]
	for {
		part, err := r.r.ReadSlice('\n')
		n := len(r.line) + len(part)
		whole := err == nil || errors.Is(err, io.EOF) && !r.rest && n > 0
		switch {
		case !whole && !errors.Is(err, bufio.ErrBufferFull):
			return nil, err
		case r.rest:
			r.rest = !whole
		case n > r.p.MaxLine, n == r.p.MaxLine && !whole:
			r.rest = !whole
			return nil, fmt.Errorf("%w: more than %d bytes", ErrTooLong, r.p.MaxLine)
		default:
			r.line = append(r.line, part...)
			if whole {
				return bytes.TrimRight(r.line, "\r\n"), nil
			}
		}
	}
}

// Writer writes whole lines. After a write that was cut short it starts a new line first. It may be used from any
// goroutine.
type Writer struct {
	w   io.Writer
	max int

	mu     sync.Mutex
	hello  *version.Hello // under mu: is still to be said
	broken bool           // under mu: the last line has no end
}

// NewWriter makes a Writer of lines of less than max bytes.
func NewWriter(w io.Writer, protocol, max int) *Writer {
	ours := version.Ours(protocol)
	return &Writer{w: w, max: max, hello: &ours}
}

// Resume has the next line begin behind the end of whatever somebody else was writing.
func (w *Writer) Resume() { w.broken = true }

// Send writes a message.
func (w *Writer) Send(m *Message) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	m.Hello = w.hello
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if len(b) >= w.max {
		return fmt.Errorf("%w: %d bytes, at most %d", ErrTooLong, len(b), w.max-1)
	}
	if w.broken {
		b = append([]byte{'\n'}, b...)
	}
	n, err := w.w.Write(append(b, '\n'))
	if err != nil {
		w.broken = w.broken || n > 0
		return err
	}
	w.broken, w.hello = false, nil
	return nil
}

// Answer ends a request, with its result or an error.
func (w *Writer) Answer(id uint64, result any, err error) error {
	m := &Message{ID: id}
	if err == nil {
		m.OK, err = json.Marshal(result) // null for nil: that is a result, too
	}
	for range 2 {
		if err != nil {
			text := err.Error()
			m.OK, m.Error = nil, &text
		}
		if err = w.Send(m); !errors.Is(err, ErrTooLong) {
			return err
		}
	}
	return err
}
