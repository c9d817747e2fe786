package loader

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"syscall"
)

// CheckHeader checks a Config.Header. The error is EINVAL.
func CheckHeader(h http.Header) error {
	for name, values := range h {
		canonical := http.CanonicalHeaderKey(name)
		switch {
		case !isToken(name):
			return fmt.Errorf("header %q: no name of one: %w", name, syscall.EINVAL)
		case slices.Contains(reserved, canonical):
			return fmt.Errorf("header %s: the loader sets it, leave it out: %w", canonical, syscall.EINVAL)
		case canonical == "Host" && (len(values) != 1 || !isHost(values[0])):
			return fmt.Errorf("header Host: not one name of a host: %w", syscall.EINVAL)
		}
		for _, v := range values { // the error does not show a value, which may be a secret
			if !isFieldValue(v) {
				return fmt.Errorf("header %s: its value has characters that cannot be sent: %w", canonical, syscall.EINVAL)
			}
		}
	}
	return nil
}

func consistsOf(s, extra string) bool {
	for _, b := range []byte(s) {
		letter := 'a' <= b|0x20 && b|0x20 <= 'z'
		if !letter && !('0' <= b && b <= '9') && strings.IndexByte(extra, b) < 0 {
			return false
		}
	}
	return true
}

// isToken reports whether s is a token of RFC 9110, 5.6.2.
func isToken(s string) bool { return s != "" && consistsOf(s, "!#$%&'*+-.^_`|~") }

// isHost reports whether s has only characters that a host and a port may have (RFC 3986, 3.2.2 and 3.2.3).
func isHost(s string) bool { return consistsOf(s, "-._~%!$&'()*+,;=:[]") }

// isFieldValue reports whether s has no ASCII control character except tabs (RFC 9110, 5.5).
func isFieldValue(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f })
}
