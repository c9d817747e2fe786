package agent

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
)

// MaxLine bounds a line in either direction. Requests are shorter, maxRequest at most: the guest's
// tty holds 64 KiB of unread bytes.
const (
	MaxLine    = 1 << 20
	maxRequest = 32 << 10
)

// ErrLineTooLong is the error for a message that is too long for a line.
var ErrLineTooLong = errors.New("message too long for the results channel")

// message is any line of the channel.
type message struct {
	ID       uint64          `json:"id,omitempty"`
	Op       string          `json:"op,omitempty"`
	Args     json.RawMessage `json:"args,omitempty"`
	Cancel   bool            `json:"cancel,omitempty"`
	OK       json.RawMessage `json:"ok,omitempty"`
	Error    *string         `json:"error,omitempty"`
	Progress json.RawMessage `json:"progress,omitempty"`
	Event    string          `json:"event,omitempty"`
	Data     json.RawMessage `json:"data,omitempty"`
}

// lineReader reads messages, and drops and counts malformed lines.
type lineReader struct {
	r       *bufio.Reader
	line    []byte
	dropped int
}

func newLineReader(r io.Reader) *lineReader {
	return &lineReader{r: bufio.NewReaderSize(r, 4096)}
}

// next returns the next message, or the reader's error.
func (l *lineReader) next() (*message, error) {
	for {
		line, err := l.readLine()
		if err != nil {
			return nil, err
		}
		if len(line) == 0 {
			continue
		}
		m := new(message)
		if json.Unmarshal(line, m) != nil || (m.ID == 0 && m.Event == "") {
			l.dropped++
			continue
		}
		return m, nil
	}
}

// readLine returns a line without its newline, or an empty line for one that is too long.
func (l *lineReader) readLine() ([]byte, error) {
	l.line = l.line[:0]
	long := false
	for {
		part, err := l.r.ReadSlice('\n')
		if len(l.line)+len(part) > MaxLine {
			long = true
		}
		if !long {
			l.line = append(l.line, part...)
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if long {
			l.dropped++
			return nil, nil
		}
		n := len(l.line)
		for n > 0 && (l.line[n-1] == '\n' || l.line[n-1] == '\r') {
			n--
		}
		return l.line[:n], nil
	}
}

// lineWriter writes whole lines. After an incomplete write it first writes a newline.
type lineWriter struct {
	mu     sync.Mutex
	w      io.Writer
	broken bool // under mu: the last line has no newline
}

func (l *lineWriter) send(m *message, limit int) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if len(b) >= limit {
		return fmt.Errorf("%w: %d bytes, at most %d", ErrLineTooLong, len(b), limit-1)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.broken {
		b = append([]byte{'\n'}, b...)
	}
	n, err := l.w.Write(append(b, '\n'))
	if err != nil {
		l.broken = l.broken || n > 0
		return err
	}
	l.broken = false
	return nil
}

// raw returns v as JSON: "null" for nil, so that an empty result is still a result.
func raw(v any) (json.RawMessage, error) {
	if r, ok := v.(json.RawMessage); ok && len(r) > 0 {
		return r, nil
	}
	return json.Marshal(v)
}

// WriteEvent writes an event line for the guest's init. It writes a newline first, because the
// agent may have died within a line.
func WriteEvent(w io.Writer, event string, data any) error {
	d, err := raw(data)
	if err != nil {
		return fmt.Errorf("event %s: %w", event, err)
	}
	l := &lineWriter{w: w, broken: true}
	return l.send(&message{Event: event, Data: d}, MaxLine)
}
