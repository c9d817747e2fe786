package plot

import (
	"bytes"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgsvg"
)

// Picture is what is drawn.
type Picture struct {
	Title, Subtitle string
	Panels          []Panel
	Bars            *Bars  // nil: none
	Footnote        string // below everything, small
}

// Panel has values over time. All panels of a picture have the same axes.
type Panel struct {
	Title  string
	Unit   string // of values
	Series []Series
	Marks  []Mark
	Limit  *Limit // nil: none
}

// Series is a line. Its colour is that of its place among the panel's.
type Series struct {
	Name      string
	Intervals []Interval // in order
	Mean      float64    // is written beside the name
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

// Format says in which format a file's name wants to be written.
func Format(file string) (string, error) {
	switch ext := strings.ToLower(filepath.Ext(file)); ext {
	case ".svg", ".png":
		return ext[1:], nil
	}
	return "", fmt.Errorf("%s: .svg or .png", file)
}

// dpi is that of a PNG: of its points two pixels are made, for displays that have many.
const dpi = 144

// Write writes the picture in a format of Format's.
func (p *Picture) Write(w io.Writer, format string) error {
	f, err := newFonts()
	if err != nil {
		return err
	}
	l := p.layout(f)
	if format == "png" {
		c := vgimg.NewWith(vgimg.UseWH(width, l.height), vgimg.UseDPI(dpi))
		l.draw(draw.New(c))
		_, err := vgimg.PngCanvas{Canvas: c}.WriteTo(w)
		return err
	}
	c := vgsvg.New(width, l.height)
	l.anchor = true
	l.draw(draw.New(c))
	var b bytes.Buffer
	if _, err := c.WriteTo(&b); err != nil {
		return err
	}
	_, err = inSVG.WriteString(w, b.String())
	return err
}

// Size is that of a PNG in pixels.
func (p *Picture) Size() (w, h int, err error) {
	f, err := newFonts()
	if err != nil {
		return 0, 0, err
	}
	pixels := func(l vg.Length) int { return int(l.Dots(dpi) + 0.5) }
	return pixels(width), pixels(p.layout(f).height), nil
}
