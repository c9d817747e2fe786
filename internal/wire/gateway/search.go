package gateway

import (
	"bufio"
	"io"
	"strings"
)

func hostSearch() []string { return fromResolvConf(readSearch) }

// readSearch reads the last search or domain line of resolv.conf(5). It leaves out words that are not domain names, and
// the rest of the line beyond maxSearch domains or maxSearchLen characters.
func readSearch(r io.Reader) (found []string) {
	for lines := bufio.NewScanner(r); lines.Scan(); {
		words := strings.Fields(lines.Text())
		if len(words) == 0 || words[0] != "search" && words[0] != "domain" {
			continue
		}
		found = nil
		n := 0
		for _, w := range words[1:] {
			w = strings.ToLower(strings.TrimSuffix(w, "."))
			if n += len(w) + 1; len(found) == maxSearch || n > maxSearchLen {
				break
			}
			if isDomain(w) {
				found = append(found, w)
			}
		}
	}
	return found
}

func isDomain(name string) bool {
	if len(name) > 253 { // RFC 1035, 2.3.4
		return false
	}
	for label := range strings.SplitSeq(name, ".") {
		if !IsLabel(label) {
			return false
		}
	}
	return true
}

// encodeNames encodes names without compression (RFC 1035, 3.1).
func encodeNames(names []string) (b []byte) {
	for _, name := range names {
		for label := range strings.SplitSeq(name, ".") {
			b = append(append(b, byte(len(label))), label...)
		}
		b = append(b, 0)
	}
	return b
}
