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
	Bars            *Bars  // nil: none
	Footnote        string // below everything, small
}

// Panel has values over time. All panels of a picture have the same axes.
type Panel struct {
	Title  string
	Unit   string // of the values
	Series []Series
	Marks  []Mark
	Limit  *Limit // nil: none
}

// Series is a line.
type Series struct {
	Name      string
	Intervals []Interval // in order
	Mean      float64    // what the legend shows beside the name
}

// Interval has a value from a time to a time, in seconds. Where the next one begins later, the line has a gap.
type Interval struct {
	From, To, Value float64
	Lost            uint64 // packets; if there are any, the interval is marked below the panel
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

// Bars has horizontal bars beside names, in columns. Each name has a bar of each group in each column.
type Bars struct {
	Title   string
	Names   []string
	Groups  []string // at most two
	Columns []Column
}

// Column has the values of bars.
type Column struct {
	Title  string
	Values [][]float64 // by group, then by name; negative: there is none
	Format func(float64) string
	Full   float64 // a line is drawn here; 0: none
}

// Format returns the format of a picture file by the end of the file's name.
func Format(file string) (string, error) {
	switch ext := strings.ToLower(filepath.Ext(file)); ext {
	case ".svg", ".png":
		return ext[1:], nil
	}
	return "", fmt.Errorf("%s: .svg or .png", file)
}

// scale is how many pixels a PNG has for a point.
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
