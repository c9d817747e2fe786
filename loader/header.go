package loader

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"syscall"
)

// CheckHeader says what is wrong with Config.Header: EINVAL.
func CheckHeader(h http.Header) error {
	for name, values := range h {
		canonical := http.CanonicalHeaderKey(name)
		switch {
		case !isToken(name):
			return fmt.Errorf("header %q: no name of one: %w", name, syscall.EINVAL)
		case slices.Contains(ours, canonical):
			return fmt.Errorf("header %s: the loader sets it, leave it out: %w", canonical, syscall.EINVAL)
		case canonical == "Host" && (len(values) != 1 || !isHost(values[0])):
			return fmt.Errorf("header Host: not one name of a host: %w", syscall.EINVAL)
		}
		for _, v := range values { // which may be a secret: it is not shown
			if !isFieldValue(v) {
				return fmt.Errorf("header %s: its value has characters that cannot be sent: %w", canonical, syscall.EINVAL)
			}
		}
	}
	return nil
}

// consistsOf reports whether each byte of s is an ASCII letter, a digit, or a byte of others.
func consistsOf(s, others string) bool {
	for _, b := range []byte(s) {
		letter := 'a' <= b|0x20 && b|0x20 <= 'z'
		if !letter && !('0' <= b && b <= '9') && strings.IndexByte(others, b) < 0 {
			return false
		}
	}
	return true
}

// isToken goes by RFC 9110, 5.6.2.
func isToken(s string) bool { return s != "" && consistsOf(s, "!#$%&'*+-.^_`|~") }

// isHost says whether s has only characters that a host and a port may have (RFC 3986, 3.2.2 and 3.2.3), as net/http
// does: their order is not checked.
func isHost(s string) bool { return consistsOf(s, "-._~%!$&'()*+,;=:[]") }

// isFieldValue goes by RFC 9110, 5.5: of the control characters a value may have the tabulator.
func isFieldValue(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f })
}
