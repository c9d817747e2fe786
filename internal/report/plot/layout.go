package plot

import (
	"image/color"
	"math"
	"strconv"

	"github.com/dustin/go-humanize"
)

// Sizes, in points.
const (
	width     float64 = 900
	margin    float64 = 24
	headLine  float64 = 24 // about the distance from the title down to the subtitle
	headRoom  float64 = 52
	axisRoom  float64 = 52 // left of panels
	nameRoom  float64 = 236
	panelLow  float64 = 150 // the least height of a panel
	panelHead float64 = 26
	panelFoot float64 = 34 // with the axis's numbers
	nameLine  float64 = 14
	lostLine  float64 = 5
	lostRoom  float64 = 12 // the least height of a panel's rows of losses, if it has any
	barThick  float64 = 8
	barGap    float64 = 7
	barsHead  float64 = 48
	columnGap float64 = 36
	footRoom  float64 = 16
)

var (
	ink   = color.NRGBA{0x22, 0x22, 0x22, 0xff}
	soft  = color.NRGBA{0x66, 0x66, 0x66, 0xff}
	grid  = color.NRGBA{0xe4, 0xe4, 0xe4, 0xff}
	frame = color.NRGBA{0x99, 0x99, 0x99, 0xff}
	alarm = color.NRGBA{0xb0, 0x00, 0x20, 0xff}

	// lines has the colours of lines: the set of Okabe and Ito (Color Universal Design, 2008), with two dark
	// colours of Tol's instead of yellow and black.
	lines = []color.NRGBA{{0x00, 0x72, 0xb2, 0xff}, {0xd5, 0x5e, 0x00, 0xff}, {0x00, 0x9e, 0x73, 0xff},
		{0xcc, 0x79, 0xa7, 0xff}, {0x56, 0xb4, 0xe9, 0xff}, {0xe6, 0x9f, 0x00, 0xff}, {0x33, 0x22, 0x88, 0xff},
		{0x88, 0x22, 0x55, 0xff}}
	dashes = [][]float64{nil, {5, 2}, {1.5, 1.5}, {7, 2, 1.5, 2}}

	fills = []color.NRGBA{{0x2f, 0x4b, 0x6e, 0xff}, {0xa9, 0xbc, 0xd0, 0xff}}
)

type layout struct {
	*Picture
	f      *fonts
	height float64
	panels []float64 // heights within the axes
	x, y   axis
	c      canvas
	pen    float64 // height above the lower edge; the parts above it have been drawn
}

func (p *Picture) layout(f *fonts) *layout {
	l := &layout{Picture: p, f: f, height: 2*margin + headRoom, panels: make([]float64, len(p.Panels))}
	var end, high float64
	for i := range p.Panels {
		panel, lost := &p.Panels[i], 0
		for j := range panel.Series {
			for _, v := range panel.Series[j].Intervals {
				end, high = max(end, v.To), max(high, v.Value)
			}
			if panel.Series[j].lost() > 0 {
				lost++
			}
		}
		if panel.Limit != nil {
			high = max(high, panel.Limit.At)
		}
		for _, m := range panel.Marks {
			end = max(end, m.At)
		}
		l.panels[i] = max(panelLow, float64(len(panel.Series)+1)*nameLine)
		l.height += panelHead + l.panels[i] + strip(lost) + panelFoot
	}
	l.x, l.y = newAxis(end, 10), newAxis(high*1.04, 5)
	if end > 0 && end < l.x.to {
		l.x.to = end // so that lines end at the right edge
	}
	if b := p.Bars; b != nil {
		l.height += barsHead + float64(len(b.Names))*b.row()
	}
	if p.Footnote != "" {
		l.height += footRoom
	}
	return l
}

// strip returns the height of n series' rows of losses.
func strip(n int) float64 {
	if n == 0 {
		return 0
	}
	return max(lostRoom, float64(n)*lostLine+2)
}

func (s *Series) lost() (n uint64) {
	for _, v := range s.Intervals {
		n += v.Lost
	}
	return n
}

func (b *Bars) row() float64 { return float64(len(b.Groups))*barThick + barGap }

// If an axis' highest value is between these bounds, its ticks and their distance are normal float64s.
const tiniest, hugest = 1e-300, 1e300

// axis is an axis from 0 to the value of to, with ticks at round numbers, multiples of step.
type axis struct {
	to, step float64
	digits   int
}

// newAxis makes an axis for values of at most high, with about n ticks. If high is out of the bounds, or not a
// number, it ends at 1.
func newAxis(high float64, n int) axis {
	if !(high > tiniest && high < hugest) {
		high = 1
	}
	unit := math.Pow(10, math.Floor(math.Log10(high/float64(n))))
	step := 10 * unit
	for _, k := range []float64{1, 2, 5} {
		if high/(k*unit) <= float64(n) {
			step = k * unit
			break
		}
	}
	return axis{to: math.Ceil(high/step) * step, step: step, digits: max(0, -int(math.Floor(math.Log10(step)+1e-9)))}
}

func (a axis) ticks() (marks []float64) {
	for i := 0.; i*a.step <= a.to*(1+1e-9); i++ {
		marks = append(marks, i*a.step)
	}
	return marks
}

func (a axis) label(v float64) string {
	if a.digits == 0 {
		return humanize.Comma(int64(math.Round(v)))
	}
	return strconv.FormatFloat(v, 'f', a.digits, 64)
}

func (a axis) place(v float64, from, to float64) float64 {
	return from + v/a.to*(to-from)
}
