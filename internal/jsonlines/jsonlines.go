// Package jsonlines frames messages between processes of vnic as JSON, one object a line.
//
// A request is {"id":1,"op":"hello","args":{...}}. The other end answers by {"id":1,"progress":...} any number of
// times, and finally by {"id":1,"ok":...} or {"id":1,"error":"..."}. {"id":1,"cancel":true} asks the other end to end a
// request early. An event, {"event":"boot"}, has no id and no answer. The first message of each end also has "hello":
// the versions of its vnic and of its protocol (package version).
//
// Neither end trusts the other: a line has a maximum length, and after the error for a malformed line the next call
// of Reader.Next reads the next line.
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

// Message is a line: a request, its cancellation, its progress, its answer, an event, or only a Hello.
type Message struct {
	ID       uint64          `json:"id,omitempty"`
	Op       string          `json:"op,omitempty"`
	Args     json.RawMessage `json:"args,omitempty"` // of a request or an event
	Cancel   bool            `json:"cancel,omitempty"`
	OK       json.RawMessage `json:"ok,omitempty"`
	Error    *string         `json:"error,omitempty"`
	Progress json.RawMessage `json:"progress,omitempty"`
	Event    string          `json:"event,omitempty"`
	Say      string          `json:"say,omitempty"` // "hello" in vnic run's event hello, for a vnic of commit 780d5150
	Hello    *version.Hello  `json:"hello,omitempty"`
}

// Protocol describes a Reader's protocol.
type Protocol struct {
	Version int
	MaxLine int    // longest line that is read, in bytes, with its newline
	Who     string // the other end, in a version.Error
	Fix     string // advice in a version.Error
}

// Errors of one line. ErrTooLong: it is longer than the Reader or the Writer allows. ErrNoMessage: it is no JSON
// object, a field has a wrong type, or id, event and hello are missing.
var (
	ErrTooLong   = errors.New("message too long")
	ErrNoMessage = errors.New("this is no message")
)

// lineError is an ErrNoMessage with the decoder's text.
type lineError struct{ error }

func (lineError) Is(target error) bool { return target == ErrNoMessage }

// Reader reads messages.
type Reader struct {
	p       Protocol
	r       *bufio.Reader
	line    []byte
	rest    bool // the next bytes are the rest of a line that was too long
	greeted bool // the first message has come
	refused error
}

// NewReader makes a Reader.
func NewReader(r io.Reader, p Protocol) *Reader {
	return &Reader{p: p, r: bufio.NewReaderSize(r, 4096)}
}

// Next returns the next message. After ErrTooLong and ErrNoMessage the next call reads on. If the first message has
// no Hello, or another version of the protocol, Next returns a version.Error with each message.
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

// Writer writes messages as lines. After an incomplete write, Send first writes a newline. Send and Answer may be
// called from several goroutines.
type Writer struct {
	w   io.Writer
	max int

	mu     sync.Mutex
	hello  *version.Hello // under mu; nil: sent
	broken bool           // under mu, but for Resume: the last line may lack its newline
}

// NewWriter makes a Writer of lines of at most max bytes, with the newline.
func NewWriter(w io.Writer, protocol, max int) *Writer {
	ours := version.Ours(protocol)
	return &Writer{w: w, max: max, hello: &ours}
}

// Resume makes the next Send begin with a newline, as another process may have left a line incomplete. No other
// method may run meanwhile.
func (w *Writer) Resume() { w.broken = true }

// Send writes m, the Writer's first message with our versions as its Hello, later ones without Hello. If the line is
// longer than the Writer allows, Send writes nothing and returns an error that wraps ErrTooLong.
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

// Answer answers a request with err, or if that is nil with result. A result that is too long or cannot be encoded
// becomes an error.
func (w *Writer) Answer(id uint64, result any, err error) error {
	m := &Message{ID: id}
	if err == nil {
		m.OK, err = json.Marshal(result) // a nil result becomes null
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
