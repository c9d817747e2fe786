package loader

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
)

// lexer takes a JSON text apart (RFC 8259) that is valid UTF-8. It makes nothing but what it returns:
// encoding/json's Decoder allocates for each token, 12 to 24 bytes for each byte of a header. Strings
// with escapes and values that are skipped are encoding/json's to judge.
type lexer struct {
	b  []byte
	at int
}

// peek skips white space, and is the next byte; 0: there is none.
func (l *lexer) peek() byte {
	for ; l.at < len(l.b); l.at++ {
		switch c := l.b[l.at]; c {
		case ' ', '\t', '\n', '\r':
		default:
			return c
		}
	}
	return 0
}

// take takes c, if it comes next.
func (l *lexer) take(c byte) bool {
	if l.peek() != c {
		return false
	}
	l.at++
	return true
}

// want takes c.
func (l *lexer) want(c byte) error {
	if !l.take(c) {
		return l.unexpected(strconv.QuoteRune(rune(c)))
	}
	return nil
}

// unexpected is the error that what should come next does not.
func (l *lexer) unexpected(should string) error {
	if l.peek(); l.at == len(l.b) {
		return io.ErrUnexpectedEOF
	}
	return fmt.Errorf("%q where %s should be", short(l.b[l.at:]), should)
}

// list takes a list in brackets: item takes each thing in it.
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

// object takes an object: f is called with each key, and takes its value.
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

// count is how many keys the object has that comes next, whose values are not looked at.
func (l *lexer) count() (n int, err error) {
	from := l.at
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
		l.at = from
	}
	return n, err
}

// text takes a string.
func (l *lexer) text() (s string, err error) {
	raw, plain, err := l.quoted()
	if err == nil && !plain {
		err = json.Unmarshal(raw, &s)
		return s, err
	}
	return string(bytes.Trim(raw, `"`)), err
}

// quoted takes a string as it is written; plain says that it has neither escapes nor what it must not
// have.
func (l *lexer) quoted() (raw []byte, plain bool, err error) {
	if l.peek() != '"' {
		return nil, false, l.unexpected("a string")
	}
	plain = true
	for i := l.at + 1; i < len(l.b); i++ {
		switch c := l.b[i]; {
		case c == '"':
			raw, l.at = l.b[l.at:i+1], i+1
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

// integers takes an array of whole numbers that are not negative.
func (l *lexer) integers() (list []uint64, err error) {
	if l.peek() == '[' { // room for all at once: a list that grows is there twice
		span := l.b[l.at : l.at+1+max(0, bytes.IndexByte(l.b[l.at+1:], ']'))]
		if n := min(bytes.Count(span, []byte{','})+1, len(span)/2); n > 0 {
			list = make([]uint64, 0, n)
		}
	}
	return list, l.list('[', ']', func() error {
		l.peek()
		n := 0
		for rest := l.b[l.at:]; n < len(rest) && bytes.IndexByte([]byte("+-.0123456789Ee"), rest[n]) >= 0; n++ {
		}
		s := l.b[l.at : l.at+n]
		if n == 0 {
			return l.unexpected("a number")
		}
		v, err := strconv.ParseUint(string(s), 10, 64)
		if err != nil || s[0] == '+' || n > 1 && s[0] == '0' {
			return fmt.Errorf("%s: no whole number from 0 to 2^64-1", short(s))
		}
		l.at += n
		list = append(list, v)
		return nil
	})
}

// skip takes a value of any kind.
func (l *lexer) skip() error {
	l.peek()
	from := l.at
	for depth := 0; l.at < len(l.b); {
		switch l.b[l.at] {
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
			l.at++
			continue
		}
		if depth < 0 || depth == 0 && l.b[l.at] == ',' { // what holds the value goes on
			if !json.Valid(l.b[from:l.at]) {
				return errors.New("a value that is no JSON")
			}
			return nil
		}
		l.at++
	}
	return io.ErrUnexpectedEOF
}
