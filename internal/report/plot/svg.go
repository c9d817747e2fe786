package plot

import (
	"bytes"
	"fmt"
	"image/color"
	"io"
	"math"
	"strconv"
	"strings"
)

// svg is a canvas that writes elements of SVG 1.1. The program that shows the file chooses the font from a list, and
// aligns a text at its point by the text's width in this font.
type svg struct{ elements bytes.Buffer }

// newSVG begins a file. The layout measures texts with the first font of the list; Arial and Helvetica are as wide.
func newSVG(width, height float64) *svg {
	s := new(svg)
	w, h := decimal(width), decimal(height)
	fmt.Fprintf(&s.elements, `<?xml version="1.0" encoding="UTF-8"?>
<svg xmlns="http://www.w3.org/2000/svg" width="%spt" height="%spt" viewBox="0 0 %s %s"
	style="font-family:'%s',Arial,Helvetica,sans-serif;stroke-linejoin:round">
`, w, h, w, h, family)
	return s
}

func (s *svg) fill(c color.NRGBA, corners []point) {
	s.path(corners, "Z")
	s.style("fill", c)
	s.elements.WriteString("\"/>\n")
}

func (s *svg) stroke(k stroke, points []point) {
	s.path(points, "")
	s.elements.WriteString("fill:none;")
	s.style("stroke", k.color)
	fmt.Fprintf(&s.elements, ";stroke-width:%s", decimal(k.width))
	for i, d := range k.dashes {
		s.elements.WriteString([]string{";stroke-dasharray:", ","}[min(i, 1)] + decimal(d))
	}
	s.elements.WriteString("\"/>\n")
}

func (s *svg) text(t style, base point, words string) {
	if t.up {
		fmt.Fprintf(&s.elements, `<text transform="translate(%s,%s) rotate(-90)"`, decimal(base.x), decimal(base.y))
	} else {
		fmt.Fprintf(&s.elements, `<text x="%s" y="%s"`, decimal(base.x), decimal(base.y))
	}
	fmt.Fprintf(&s.elements, ` style="font-size:%spx;`, decimal(t.size))
	if t.bold {
		s.elements.WriteString("font-weight:bold;")
	}
	switch t.x {
	case -1:
		s.elements.WriteString("text-anchor:end;")
	case -0.5:
		s.elements.WriteString("text-anchor:middle;")
	}
	s.style("fill", t.color)
	s.elements.WriteString("\">" + escape.Replace(words) + "</text>\n")
}

func (s *svg) path(points []point, end string) {
	s.elements.WriteString(`<path d="`)
	for i, p := range points {
		s.elements.WriteString([]string{"M", "L"}[min(i, 1)] + decimal(p.x) + "," + decimal(p.y))
	}
	s.elements.WriteString(end + `" style="`)
}

func (s *svg) style(property string, c color.NRGBA) {
	fmt.Fprintf(&s.elements, "%s:#%02x%02x%02x", property, c.R, c.G, c.B)
	if c.A != 0xff {
		fmt.Fprintf(&s.elements, ";%s-opacity:%s", property, decimal(float64(c.A)/0xff))
	}
}

func (s *svg) encode(w io.Writer) error {
	s.elements.WriteString("</svg>\n")
	_, err := s.elements.WriteTo(w)
	return err
}

// escape replaces the characters for which XML 1.0 has predefined entities (4.6).
var escape = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", `"`, "&quot;", "'", "&apos;")

// decimal writes a number with at most two decimals.
func decimal(v float64) string {
	return strconv.FormatFloat(math.Round(v*100)/100+0, 'f', -1, 64) // -0 + 0 is 0
}
