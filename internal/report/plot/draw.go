package plot

import (
	"fmt"
	"image/color"
	"math"
	"slices"

	"github.com/dustin/go-humanize"
)

func (l *layout) draw() {
	l.pen = l.height - margin
	l.rect(color.NRGBA{0xff, 0xff, 0xff, 0xff}, 0, 0, width, l.height)
	l.text(style{size: 17, bold: true}, margin, l.pen-8, l.f.fit(style{size: 17, bold: true}, l.Title, width-2*margin))
	sub := style{size: 10.5, color: soft}
	l.text(sub, margin, l.pen-8-headLine+3, l.f.fit(sub, l.Subtitle, width-2*margin))
	l.pen -= headRoom
	for i := range l.Panels {
		l.panel(&l.Panels[i], l.panels[i], i == len(l.Panels)-1)
	}
	if l.Bars != nil {
		l.bars(l.Bars)
	}
	note := style{size: 8.5, color: soft}
	l.text(note, margin, margin-6, l.f.fit(note, l.Footnote, width-2*margin))
}

// farthest bounds the coordinates of what is drawn: infinite values would have no place in a file.
const farthest = 1 << 20

// pointAt returns the place on the canvas of a point of the layout, whose y counts upwards.
func (l *layout) pointAt(x, y float64) point {
	bounded := func(v float64) float64 {
		if math.IsNaN(v) {
			return 0
		}
		return min(max(v, -farthest), farthest)
	}
	return point{bounded(x), bounded(l.height - y)}
}

// text draws a line of text whose middle is at height y, or at x if it runs upwards.
func (l *layout) text(s style, x, y float64, t string) {
	if t = clean(t); t == "" {
		return
	}
	if s.color == (color.NRGBA{}) {
		s.color = ink
	}
	base := 0.36 * s.size // about half the height of capitals
	if s.up {
		l.c.text(s, l.pointAt(x+base, y), t)
		return
	}
	l.c.text(s, l.pointAt(x, y-base), t)
}

func (l *layout) line(c color.NRGBA, w, x0, y0, x1, y1 float64, dash ...float64) {
	l.c.stroke(stroke{c, w, dash}, []point{l.pointAt(x0, y0), l.pointAt(x1, y1)})
}

func (l *layout) rect(c color.NRGBA, x0, y0, x1, y1 float64) {
	l.c.fill(c, []point{l.pointAt(x0, y0), l.pointAt(x1, y0), l.pointAt(x1, y1), l.pointAt(x0, y1)})
}

func lineOf(i int) stroke {
	return stroke{lines[i%len(lines)], 1.5, dashes[i/len(lines)%len(dashes)]}
}

func (l *layout) panel(p *Panel, high float64, last bool) {
	left, right := margin+axisRoom, width-margin-nameRoom
	l.text(style{size: 12, bold: true}, left, l.pen-8, l.f.fit(style{size: 12, bold: true}, p.Title, right-left))
	top := l.pen - panelHead
	bottom := top - high
	x := func(v float64) float64 { return l.x.place(v, left, right) }
	y := func(v float64) float64 { return l.y.place(v, bottom, top) }

	for _, v := range l.y.ticks() {
		l.line(grid, 0.6, left, y(v), right, y(v))
		l.text(style{size: 9, color: soft, x: -1}, left-6, y(v), l.y.label(v))
	}
	l.text(style{size: 9, color: soft, x: -0.5, up: true}, margin+4, (top+bottom)/2, p.Unit)
	under := bottom - l.lostRows(p, bottom, x)
	for _, v := range l.x.ticks() {
		l.line(grid, 0.6, x(v), bottom, x(v), top)
		l.line(frame, 0.6, x(v), under, x(v), under-3)
		t := l.x.label(v)
		if last && v+l.x.step > l.x.to*(1+1e-9) {
			t += " s"
		}
		l.text(style{size: 9, color: soft, x: -0.5}, x(v), under-11, t)
	}
	l.line(frame, 0.8, left, under, right, under)
	if under != bottom {
		l.line(frame, 0.4, left, bottom, right, bottom)
	}
	for i := range p.Series {
		for _, part := range p.Series[i].points() {
			for j, v := range part {
				part[j] = l.pointAt(x(v.x), y(v.y))
			}
			l.c.stroke(lineOf(i), part)
		}
	}
	if m := p.Limit; m != nil {
		l.line(soft, 0.9, left, y(m.At), right, y(m.At), 4, 3)
		l.label(style{size: 8.5, color: soft, x: -1}, right-3, y(m.At)+8, m.Text)
	}
	l.marks(p.Marks, x, top, under, right)
	l.names(p, right+18, top)
	l.pen = under - panelFoot
}

// points returns, for each run of intervals without a gap, a time and a value at the beginning of the run, at the
// middle of each of its intervals, and at its end.
func (s *Series) points() (parts [][]point) {
	var part []point
	for i, v := range s.Intervals {
		if i == 0 || v.From > s.Intervals[i-1].To {
			part = []point{{v.From, v.Value}}
		}
		part = append(part, point{(v.From + v.To) / 2, v.Value})
		if i == len(s.Intervals)-1 || s.Intervals[i+1].From > v.To {
			parts = append(parts, append(part, point{v.To, v.Value}))
		}
	}
	return parts
}

// lostRows draws a row for each series that has lost packets, and returns the height of the rows.
func (l *layout) lostRows(p *Panel, bottom float64, x func(float64) float64) (high float64) {
	n := 0
	for i := range p.Series {
		s := &p.Series[i]
		if s.lost() == 0 {
			continue
		}
		top := bottom - 2 - float64(n)*lostLine
		n++
		for _, v := range s.Intervals {
			if v.Lost > 0 {
				from, to := x(v.From), x(v.To)
				l.rect(lineOf(i).color, from, top-lostLine+1.5, max(to, from+1), top)
			}
		}
	}
	if n > 0 {
		l.text(style{size: 8.5, color: soft, x: -1}, margin+axisRoom-6, bottom-8, "lost")
	}
	return strip(n)
}

// marks draws a line and a text for each Mark. Texts that would overlap are drawn one below the other.
func (l *layout) marks(marks []Mark, x func(float64) float64, top, bottom, right float64) {
	const size = 8.5
	var ends []float64 // by row: where its last text ends
	var texts []func() // draw the texts, after all lines
	for _, m := range marks {
		pos, s := x(m.At), style{size: size, color: alarm}
		l.line(alarm, 1, pos, bottom, pos, top, 2, 2)
		wide, from := l.f.width(s, m.Text), pos+4
		if from+wide > right {
			from = max(pos-4-wide, margin+axisRoom)
		}
		row := 0
		for row < len(ends) && ends[row] > from {
			row++
		}
		if row == len(ends) {
			ends = append(ends, 0)
		}
		ends[row] = from + wide + 6
		y := top - 8 - float64(row)*(size+4)
		texts = append(texts, func() { l.label(s, from, y, m.Text) })
	}
	for _, f := range texts {
		f()
	}
}

// label draws a text on a white rectangle.
func (l *layout) label(s style, x, y float64, t string) {
	wide := l.f.width(s, t)
	from := x + s.x*wide
	l.rect(color.NRGBA{0xff, 0xff, 0xff, 0xdd}, from-2, y-s.size*0.65, from+wide+2, y+s.size*0.65)
	l.text(s, x, y, t)
}

// names draws the legend.
func (l *layout) names(p *Panel, x, top float64) {
	head, number, name := style{size: 8.5, color: soft, x: -1}, style{size: 9.5, x: -1}, style{size: 9.5}
	right := width - margin
	column := func(title string, label func(*Series) string) {
		wide := l.f.width(head, title)
		l.text(head, right, top-4, title)
		for i := range p.Series {
			t := label(&p.Series[i])
			l.text(number, right, top-4-nameLine*float64(i+1), t)
			wide = max(wide, l.f.width(number, t))
		}
		right -= wide + 10
	}
	if slices.ContainsFunc(p.Series, func(s Series) bool { return s.lost() > 0 }) {
		column("lost", func(s *Series) string { return humanize.Comma(int64(s.lost())) })
	}
	column("mean "+p.Unit, func(s *Series) string { return digits(s.Mean) })
	for i := range p.Series {
		y := top - 4 - nameLine*float64(i+1)
		thick := lineOf(i)
		thick.width = 2.5
		l.c.stroke(thick, []point{l.pointAt(x, y), l.pointAt(x+18, y)})
		l.text(name, x+24, y, l.f.fit(name, p.Series[i].Name, right-x-24))
	}
}

// digits formats a positive number with three significant digits, or all digits before the point if there are more,
// and other numbers as "0".
func digits(v float64) string {
	if v <= 0 {
		return "0"
	}
	return fmt.Sprintf("%.*f", max(0, 2-int(math.Floor(math.Log10(v)))), v)
}

func (l *layout) bars(b *Bars) {
	bold := style{size: 12, bold: true}
	l.text(bold, margin, l.pen-8, b.Title)
	x := width - margin
	for i := len(b.Groups) - 1; i >= 0; i-- { // from the right
		s := style{size: 9.5}
		x -= l.f.width(s, b.Groups[i])
		l.text(s, x, l.pen-8, b.Groups[i])
		l.rect(fills[i%len(fills)], x-15, l.pen-12, x-5, l.pen-4)
		x -= 30
	}
	names := style{size: 9.5, x: -1}
	room := 0.
	for _, n := range b.Names {
		room = max(room, l.f.width(names, n))
	}
	room = min(room, width/4)
	top := l.pen - barsHead + 4
	bottom := top - float64(len(b.Names))*b.row()
	for i, n := range b.Names {
		l.text(names, margin+room, top-b.row()*(float64(i)+0.5), l.f.fit(names, n, room))
	}
	from := margin + room + 10
	wide := (width - margin - from - columnGap*float64(len(b.Columns)-1)) / float64(max(1, len(b.Columns)))
	for i := range b.Columns {
		l.column(b, &b.Columns[i], from, from+wide, top, bottom)
		from += wide + columnGap
	}
	l.pen = bottom
}

func (l *layout) column(b *Bars, c *Column, left, right, top, bottom float64) {
	const number = 44 // room right of the longest bar
	l.text(style{size: 9.5, color: soft}, left, top+10, l.f.fit(style{size: 9.5}, c.Title, right-left))
	high := c.Full
	for _, values := range c.Values {
		for _, v := range values {
			high = max(high, v)
		}
	}
	if high <= 0 {
		high = 1
	}
	x := func(v float64) float64 { return left + v/high*(right-left-number) }
	for i := range b.Names {
		y := top - b.row()*float64(i) - barGap/2
		for g := range c.Values {
			if v := c.Values[g][i]; v >= 0 {
				l.rect(fills[g%len(fills)], left, y-barThick+0.5, max(x(v), left+0.5), y)
				number, pos := style{size: 7.5, color: soft}, x(v)+4
				if full := x(c.Full); c.Full > 0 && pos < full+3 && pos+l.f.width(number, c.Format(v)) > full-3 {
					pos = full + 4
				}
				l.text(number, pos, y-barThick/2, c.Format(v))
			}
			y -= barThick
		}
	}
	l.line(frame, 0.8, left, top, left, bottom)
	if c.Full > 0 {
		l.line(alarm, 0.8, x(c.Full), top, x(c.Full), bottom, 2, 2)
	}
}
