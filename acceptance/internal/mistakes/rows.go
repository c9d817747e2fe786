package mistakes

import (
	"os"
	"regexp"
	"strings"
)

// Table is what docs/mistakes.md says: by mistake, what a program is told, in one of several ways.
type Table map[string][]string

// Rows reads the table of a page: rows of which the first cell is the name of a mistake, and the second has what is said
// as `code`.
func Rows(page string) (Table, error) {
	b, err := os.ReadFile(page)
	if err != nil {
		return nil, err
	}
	t := Table{}
	code := regexp.MustCompile("`([^`]+)`")
	for line := range strings.Lines(string(b)) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | ")
		if !strings.HasPrefix(line, "| ") || len(cells) != 3 || strings.HasPrefix(cells[0], "---") {
			continue
		}
		for _, m := range code.FindAllStringSubmatch(cells[1], -1) {
			name := strings.TrimSpace(cells[0])
			t[name] = append(t[name], m[1])
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
