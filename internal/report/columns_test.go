package report

import (
	"fmt"
	"strings"
	"testing"

	"vnic.dev/vnic/internal/testkit"
)

type transfer struct {
	name        string
	bytes, lost uint64
	held        *uint64
}

var columns = Columns[transfer]{
	{Title: "name", Text: func(x *transfer) string { return x.name }},
	Sum("bytes", func(x *transfer) *uint64 { return &x.bytes }),
	Sum("", func(x *transfer) *uint64 { return &x.lost }),
	Optional("held", func(x *transfer) *uint64 { return x.held }, func(n *uint64) string { return fmt.Sprint(*n) }),
}

func TestColumns(t *testing.T) {
	held := uint64(7)
	a, b := transfer{name: "a", bytes: 1e6, lost: 1}, transfer{name: "bb", bytes: 20, lost: 2, held: &held}
	for _, c := range []struct {
		name, want string
		write      func(w *strings.Builder) error
	}{
		{"table", "name  bytes      held\na     1,000,000  \nbb    20         7\n",
			func(w *strings.Builder) error { return columns.Table(w, []transfer{a, b}) }},
		{"table without the optional one", "name  bytes\na     1,000,000\n",
			func(w *strings.Builder) error { return columns.Table(w, []transfer{a}) }},
		{"sheet", "    name           a   bb\n   bytes   1,000,000   20\n    held                7\n",
			func(w *strings.Builder) error { return columns.Sheet(w, []transfer{a, b}) }},
		{"right", "  name  bytes  held\n    bb     20     7 2 lost\n", func(w *strings.Builder) error {
			return columns.Right(w, []transfer{b}, func(x *transfer) string { return fmt.Sprintf(" %d lost", x.lost) })
		}},
	} {
		var w strings.Builder
		testkit.OK(t, c.write(&w))
		testkit.Equal(t, c.name, w.String(), c.want)
	}
	columns.Add(&a, &b)
	testkit.Equal(t, "sums", fmt.Sprint(a.name, " ", a.bytes, " ", a.lost), "a 1000020 3")
}
