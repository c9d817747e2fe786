package mistakes

import (
	"os"
	"regexp"
	"strings"
)

// Table has the messages of docs/mistakes.md, by the name of their mistake.
type Table map[string][]string

// Rows reads a page: indented lines below a heading "### NAME" are messages.
func Rows(page string) (Table, error) {
	b, err := os.ReadFile(page)
	if err != nil {
		return nil, err
	}
	t := Table{}
	name := ""
	for line := range strings.Lines(string(b)) {
		line = strings.TrimRight(line, "\n")
		if heading, ok := strings.CutPrefix(line, "### "); ok {
			name = heading
		} else if strings.HasPrefix(line, "#") {
			name = ""
		}
		if message, ok := strings.CutPrefix(line, "    "); ok && name != "" {
			t[name] = append(t[name], message)
		}
	}
	return t, nil
}

// Say reports whether a line contains one of the messages of a mistake. Numbers may differ, also in the units ms and s;
// "..." in a message stands for anything.
func (t Table) Say(name, line string) bool {
	for _, message := range t[name] {
		if pattern(message).MatchString(line) {
			return true
		}
	}
	return false
}

var number = regexp.MustCompile(`(0x[0-9a-f]+|[0-9]+(\\\.[0-9]+)*)(ms|s)?`)

func pattern(message string) *regexp.Regexp {
	q := number.ReplaceAllString(regexp.QuoteMeta(message), `(0x[0-9a-f]+|[0-9.]+)(ms|s)?`)
	return regexp.MustCompile(strings.ReplaceAll(q, `\.\.\.`, ".*"))
}
