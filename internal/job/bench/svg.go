package bench

import (
	"encoding/xml"
	"fmt"
	"io"
	"math"
	"strings"
)

// sizes in pixels
const (
	svgLeft   = 150
	svgRight  = 150
	svgAxis   = 560
	svgRow    = 26
	svgMargin = 40
)

// SVG writes a picture of the rows that have a ratio. It shows the ratios and, in grey, A/A ratios: a line for the
// interval, a dot for the median, on a logarithmic axis.
func (rep *Report) SVG(w io.Writer) error {
	var rows []*Row
	low, high := 0.5, 2.0
	for i := range rep.Rows {
		r := &rep.Rows[i]
		if r.Ratio == nil {
			continue
		}
		rows = append(rows, r)
		low, high = min(low, r.Ratio.Low, r.AA.Low), max(high, r.Ratio.High, r.AA.High)
	}
	low, high = math.Max(low, 0.01), math.Min(high, 100) // values beyond low and high are drawn at the edge
	x := func(v float64) float64 {
		v = min(max(v, low), high)
		return svgLeft + svgAxis*math.Log(v/low)/math.Log(high/low)
	}
	width, bottom := svgLeft+svgAxis+svgRight, svgMargin+svgRow*len(rows)
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" `+
		`font-family="sans-serif" font-size="12">`+"\n<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
		width, bottom+2*svgMargin)
	text := func(x float64, y int, anchor, s string) {
		fmt.Fprintf(&b, `<text x="%.1f" y="%d" text-anchor="%s">`, x, y, anchor)
		_ = xml.EscapeText(&b, []byte(s))
		b.WriteString("</text>\n")
	}
	text(svgLeft, svgMargin/2, "start", "vnic bench: ours / yardstick; grey: ours / ours (A/A); lines: 95 % of the median")
	for _, v := range []float64{0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100} {
		if v < low || v > high {
			continue
		}
		color := "#ddd"
		if v == 1 {
			color = "#888"
		}
		fmt.Fprintf(&b, `<line x1="%.1f" y1="%d" x2="%.1f" y2="%d" stroke="%s"/>`+"\n", x(v), svgMargin-8, x(v),
			bottom, color)
		text(x(v), bottom+16, "middle", fmt.Sprint(v))
	}
	bar := func(v *Interval, y int, color string) {
		fmt.Fprintf(&b, `<line x1="%.1f" y1="%d" x2="%.1f" y2="%d" stroke="%s" stroke-width="2"/>`+
			`<circle cx="%.1f" cy="%d" r="3" fill="%s"/>`+"\n", x(v.Low), y, x(v.High), y, color, x(v.Median), y, color)
	}
	for i, r := range rows {
		y := svgMargin + svgRow*i + svgRow/2
		bar(r.AA, y+5, "#aaa")
		bar(r.Ratio, y-3, "#06c")
		text(svgLeft-10, y+3, "end", r.Name)
		text(svgLeft+svgAxis+10, y+3, "start", r.Ratio.ratio()+" ("+r.Ratio.bounds()+")")
	}
	text(svgLeft, bottom+svgMargin, "start", "GB/s rows: more is better. ns/frame rows: less is better. Logarithmic axis.")
	b.WriteString("</svg>\n")
	_, err := io.WriteString(w, b.String())
	return err
}
