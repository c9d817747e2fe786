package loader

import (
	"strings"
	"testing"

	"golang.org/x/net/http/httpguts"
)

// The loader accepts the same names of headers, hosts and values as httpguts, which net/http uses.
func TestCharactersOfHeaders(t *testing.T) {
	check := func(s string) {
		for _, c := range []struct {
			what      string
			got, want bool
		}{
			{"name", isToken(s), httpguts.ValidHeaderFieldName(s)},
			{"host", isHost(s), httpguts.ValidHostHeader(s)},
			{"value", isFieldValue(s), httpguts.ValidHeaderFieldValue(s)},
		} {
			if c.got != c.want {
				t.Errorf("%q as a %s: %v, not %v", s, c.what, c.got, c.want)
			}
		}
	}
	check("")
	for b := range 256 {
		check(string([]byte{byte(b)}))
		check("a" + string([]byte{byte(b)}) + "z")
	}
	check(strings.Repeat("é", 3))
}
