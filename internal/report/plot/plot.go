package plot

import (
	"fmt"
	"io"
	"path/filepath"
	"strings"
)

// Picture has the data that Write draws.
type Picture struct {
	Title, Subtitle string
	Panels          []Panel
	Bars            *Bars
	Footnote        string // below everything
}

// Panel has values over time. All panels of a picture have the same axes.
type Panel struct {
	Title  string
	Unit   string
	Series []Series
	Marks  []Mark
	Limit  *Limit
}

// Series is a line in a panel.
type Series struct {
	Name      string
	Intervals []Interval
	Mean      float64 // beside the name in the legend
}

// Interval has a value from a time to a time, in seconds. The line has a gap where the next interval begins later than
// this one ends.
type Interval struct {
	From, To, Value float64
	Lost            uint64 // packets lost in the interval
}

// Mark is a vertical line with a text.
type Mark struct {
	At   float64
	Text string
}

// Limit is a horizontal line with a text.
type Limit struct {
	At   float64
	Text string
}

// Bars has horizontal bars beside names, in columns, with a bar of each group for each name.
type Bars struct {
	Title   string
	Names   []string
	Groups  []string // at most two
	Columns []Column
}

// Column has the values of bars.
type Column struct {
	Title  string
	Values [][]float64 // by group, then by name; negative: none
	Format func(float64) string
	Full   float64 // a line at this value, which the column has room for; 0: none
}

// Format returns the format of a picture file by the end of the file's name.
func Format(file string) (string, error) {
	switch ext := strings.ToLower(filepath.Ext(file)); ext {
	case ".svg", ".png":
		return ext[1:], nil
	}
	return "", fmt.Errorf("%s: .svg or .png", file)
}

// scale is the number of pixels per point in a PNG.
const scale = 2

// Write writes the picture in a format that Format has returned.
func (p *Picture) Write(w io.Writer, format string) error {
	f, err := newFonts()
	if err != nil {
		return err
	}
	l := p.layout(f)
	if format == "png" {
		l.c = newRaster(pixels(width), pixels(l.height), scale, f)
	} else {
		l.c = newSVG(width, l.height)
	}
	l.draw()
	return l.c.encode(w)
}

func pixels(points float64) int { return int(points*scale + 0.5) }
