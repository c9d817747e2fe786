package boot

import (
	"bytes"
	"io"
	"sync"
)

// maxLine is the length from which a line may be written in pieces, each as a line.
const maxLine = 64 << 10

// lines writes whole lines to w, each after a prefix. A line of maxLine bytes or more may become several lines.
type lines struct {
	mu     *sync.Mutex // held while writing to w; other lines, of another w too, may share it
	w      io.Writer
	prefix string
	buf    []byte // bytes of the current line that flush has not written yet
}

func (l *lines) Write(b []byte) (int, error) {
	n := len(b)
	for len(b) > 0 {
		i := bytes.IndexByte(b, '\n')
		if i < 0 && len(l.buf)+len(b) < maxLine {
			l.buf = append(l.buf, b...)
			return n, nil
		}
		if i < 0 {
			i = len(b) - 1
		}
		l.buf = append(l.buf, b[:i+1]...)
		b = b[i+1:]
		if err := l.flush(); err != nil {
			return n - len(b), err
		}
	}
	return n, nil
}

// end writes the bytes in buf, if any, as a line.
func (l *lines) end() {
	if len(l.buf) > 0 {
		_ = l.flush()
	}
}

func (l *lines) flush() error {
	line := append([]byte(l.prefix), l.buf...)
	l.buf = l.buf[:0]
	if line[len(line)-1] != '\n' {
		line = append(line, '\n')
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	_, err := l.w.Write(line)
	return err
}
