package mistakes

import (
	"os"
	"regexp"
	"strings"
)

// Table has the messages of docs/mistakes.md by mistake. A program gets one of them.
type Table map[string][]string

// Rows reads a page: the indented lines below a heading "### NAME" are the messages for that
// mistake.
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
		if said, ok := strings.CutPrefix(line, "    "); ok && name != "" {
			t[name] = append(t[name], said)
		}
	}
	return t, nil
}

// Say reports whether a line contains one of the page's messages for a mistake. Numbers and
// addresses may differ, and other text may precede and follow; "..." stands for any text.
func (t Table) Say(name, line string) bool {
	for _, said := range t[name] {
		if pattern(said).MatchString(line) {
			return true
		}
	}
	return false
}

var number = regexp.MustCompile(`(0x[0-9a-f]+|[0-9]+(\\\.[0-9]+)*)(ms|s)?`)

func pattern(said string) *regexp.Regexp {
	q := number.ReplaceAllString(regexp.QuoteMeta(said), `(0x[0-9a-f]+|[0-9.]+)(ms|s)?`)
	return regexp.MustCompile(strings.ReplaceAll(q, `\.\.\.`, ".*"))
}
