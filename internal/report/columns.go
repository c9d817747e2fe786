// Package report makes the tables and the JSON of commands' reports, and lists what in a report contradicts its proof.
package report

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/dustin/go-humanize"
)

// Column is a figure of a T, and how tables show it.
type Column[T any] struct {
	Title string           // " ": an empty heading; "": no table shows the figure
	Count func(*T) *uint64 // the figure in a T; may be nil if Text is set and Sum is not
	Text  func(*T) string  // the cell; nil: Count, with separators between thousands
	If    func([]T) bool   // whether the table of a list shows the column; nil: for each list
	Sum   bool             // Columns.Add adds up Count
}

// Sum returns a column of a count that Columns.Add adds up.
func Sum[T any](title string, count func(*T) *uint64) Column[T] {
	return Column[T]{Title: title, Count: count, Sum: true}
}

// Optional returns a column of a part that some T have, shown if an element of the list has it.
func Optional[T, P any](title string, part func(*T) *P, text func(*P) string) Column[T] {
	return Column[T]{Title: title, Text: func(x *T) string {
		if p := part(x); p != nil {
			return text(p)
		}
		return ""
	}, If: func(list []T) bool {
		return slices.ContainsFunc(list, func(x T) bool { return part(&x) != nil })
	}}
}

// Columns are the columns of a table, from left to right, or the lines of a sheet, from top to bottom.
type Columns[T any] []Column[T]

// Table writes the headings, and below them a line for each element of list.
func (c Columns[T]) Table(w io.Writer, list []T) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	c.lines(list, func(cells []string, _ *T) { fmt.Fprintln(tw, strings.Join(cells, "\t")) })
	return tw.Flush()
}

// Most is Table for the first elements of list, at most as many as most says. all is the number of elements in total:
// if it is larger, a last line has the number of elements that the table leaves out.
func (c Columns[T]) Most(w io.Writer, list []T, most, all int) error {
	list = list[:min(len(list), most)]
	err := c.Table(w, list)
	if more := all - len(list); err == nil && more > 0 {
		_, err = fmt.Fprintf(w, "and %d more: --json\n", more)
	}
	return err
}

// Right is Table with cells aligned to the right. tail, if not nil, makes the end of an element's line.
func (c Columns[T]) Right(w io.Writer, list []T, tail func(*T) string) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	c.lines(list, func(cells []string, x *T) {
		fmt.Fprint(tw, strings.Join(cells, "\t"), "\t")
		if x != nil && tail != nil {
			fmt.Fprint(tw, tail(x))
		}
		fmt.Fprintln(tw)
	})
	return tw.Flush()
}

func (c Columns[T]) lines(list []T, line func(cells []string, x *T)) {
	shown := c.shown(list)
	cells := make([]string, len(shown))
	for i := range shown {
		cells[i] = strings.TrimSpace(shown[i].Title)
	}
	line(cells, nil)
	for k := range list {
		for i := range shown {
			cells[i] = shown[i].cell(&list[k])
		}
		line(cells, &list[k])
	}
}

// Sheet writes a line for each column that Table would show: its heading, and its cell of each element of list.
func (c Columns[T]) Sheet(w io.Writer, list []T) error {
	tw := tabwriter.NewWriter(w, 0, 0, 3, ' ', tabwriter.AlignRight)
	for _, x := range c.shown(list) {
		fmt.Fprintf(tw, "%s\t", x.Title)
		for i := range list {
			fmt.Fprintf(tw, "%s\t", x.cell(&list[i]))
		}
		fmt.Fprintln(tw)
	}
	return tw.Flush()
}

func (c Columns[T]) shown(list []T) (shown Columns[T]) {
	for _, x := range c {
		if x.Title != "" && (x.If == nil || x.If(list)) {
			shown = append(shown, x)
		}
	}
	return shown
}

func (c *Column[T]) cell(x *T) string {
	if c.Text != nil {
		return c.Text(x)
	}
	return Number(*c.Count(x))
}

// Encoder returns an encoder that writes JSON indented by two spaces.
func Encoder(w io.Writer) *json.Encoder {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e
}

// PerSecond returns n divided by seconds, or 0 if seconds is 0.
func PerSecond(n uint64, seconds float64) float64 {
	if seconds == 0 {
		return 0
	}
	return float64(n) / seconds
}

// Number formats a number up to math.MaxInt64 with separators between thousands.
func Number(n uint64) string { return humanize.Comma(int64(n)) }

// Add adds the counts of x to the counts of to, in the columns whose Sum is true.
func (c Columns[T]) Add(to, x *T) {
	for _, col := range c {
		if col.Sum {
			*col.Count(to) += *col.Count(x)
		}
	}
}
