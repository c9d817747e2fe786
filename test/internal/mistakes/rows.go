package mistakes

import (
	"os"
	"regexp"
	"strings"
)

// Table is what docs/mistakes.md says: by mistake, what a program is told, in one of several ways.
type Table map[string][]string

// Rows reads a page: below a heading "### NAME" of a mistake, indented lines are what is said.
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

// Say tells whether a line has what the page says of a mistake. Numbers may differ, also those of addresses, and there
// may be more before and behind it; "..." stands for anything.
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
