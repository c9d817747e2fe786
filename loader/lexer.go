package loader

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
)

// lexer reads the values of a JSON text (RFC 8259), which must be valid UTF-8, one after the other. It allocates
// less than encoding/json's Decoder, which allocates for each token.
type lexer struct {
	b   []byte
	pos int
}

// peek skips white space and returns the byte at pos, or 0 at the end.
func (l *lexer) peek() byte {
	for ; l.pos < len(l.b); l.pos++ {
		switch c := l.b[l.pos]; c {
		case ' ', '\t', '\n', '\r':
		default:
			return c
		}
	}
	return 0
}

func (l *lexer) take(c byte) bool {
	if l.peek() != c {
		return false
	}
	l.pos++
	return true
}

func (l *lexer) want(c byte) error {
	if !l.take(c) {
		return l.unexpected(strconv.QuoteRune(rune(c)))
	}
	return nil
}

func (l *lexer) unexpected(should string) error {
	if l.peek(); l.pos == len(l.b) {
		return io.ErrUnexpectedEOF
	}
	return fmt.Errorf("%q where %s should be", short(l.b[l.pos:]), should)
}

// list parses elements with commas between them, from bracket from to bracket to; it calls item to parse each element.
func (l *lexer) list(from, to byte, item func() error) error {
	if err := l.want(from); err != nil {
		return err
	}
	if l.take(to) {
		return nil
	}
	for {
		if err := item(); err != nil {
			return err
		}
		if l.take(to) {
			return nil
		}
		if err := l.want(','); err != nil {
			return err
		}
	}
}

// object parses an object: it calls f with each key, and f parses the value.
func (l *lexer) object(f func(key string) error) error {
	return l.list('{', '}', func() error {
		key, err := l.text()
		if err == nil {
			err = l.want(':')
		}
		if err != nil {
			return err
		}
		return f(key)
	})
}

// count returns the number of keys of the object that comes next. It moves pos only if it returns an error.
func (l *lexer) count() (n int, err error) {
	from := l.pos
	err = l.list('{', '}', func() error {
		n++
		_, _, err := l.quoted()
		if err == nil {
			err = l.want(':')
		}
		if err != nil {
			return err
		}
		return l.skip()
	})
	if err == nil {
		l.pos = from
	}
	return n, err
}

func (l *lexer) text() (s string, err error) {
	raw, plain, err := l.quoted()
	if err == nil && !plain {
		err = json.Unmarshal(raw, &s)
		return s, err
	}
	return string(bytes.Trim(raw, `"`)), err
}

// quoted takes a string and returns its bytes as they are written, with the quotes. plain is true if it has no
// escapes and no control characters.
func (l *lexer) quoted() (raw []byte, plain bool, err error) {
	if l.peek() != '"' {
		return nil, false, l.unexpected("a string")
	}
	plain = true
	for i := l.pos + 1; i < len(l.b); i++ {
		switch c := l.b[i]; {
		case c == '"':
			raw, l.pos = l.b[l.pos:i+1], i+1
			return raw, plain, nil
		case c == '\\':
			plain = false
			i++
		case c < ' ':
			plain = false
		}
	}
	return nil, false, io.ErrUnexpectedEOF
}

func (l *lexer) integers() (list []uint64, err error) {
	if l.peek() == '[' { // allocate once: while a list grows, the old and the new one exist
		span := l.b[l.pos : l.pos+1+max(0, bytes.IndexByte(l.b[l.pos+1:], ']'))]
		if n := min(bytes.Count(span, []byte{','})+1, len(span)/2); n > 0 {
			list = make([]uint64, 0, n)
		}
	}
	return list, l.list('[', ']', func() error {
		l.peek()
		n := 0
		for rest := l.b[l.pos:]; n < len(rest) && bytes.IndexByte([]byte("+-.0123456789Ee"), rest[n]) >= 0; n++ {
		}
		s := l.b[l.pos : l.pos+n]
		if n == 0 {
			return l.unexpected("a number")
		}
		v, err := strconv.ParseUint(string(s), 10, 64)
		if err != nil || s[0] == '+' || n > 1 && s[0] == '0' {
			return fmt.Errorf("%s: no whole number from 0 to 2^64-1", short(s))
		}
		l.pos += n
		list = append(list, v)
		return nil
	})
}

// skip moves pos past a value in an object or a list, to the comma or bracket behind it, and checks that the value is
// valid JSON.
func (l *lexer) skip() error {
	l.peek()
	from := l.pos
	for depth := 0; l.pos < len(l.b); {
		switch l.b[l.pos] {
		case '"':
			if _, _, err := l.quoted(); err != nil {
				return err
			}
			continue
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		case ',':
		default:
			l.pos++
			continue
		}
		if depth < 0 || depth == 0 && l.b[l.pos] == ',' { // the enclosing object or list continues or ends here
			if !json.Valid(l.b[from:l.pos]) {
				return errors.New("a value that is no JSON")
			}
			return nil
		}
		l.pos++
	}
	return io.ErrUnexpectedEOF
}
